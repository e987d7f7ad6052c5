// The files beside the weights in Hugging Face's folders: keys of config.json, and what is kept when a model is saved
// again.
#include <doctest/doctest.h>

#include <cmath>

#include "nn/hugging_face/config.h"
#include "nn/hugging_face/pretrained.h"
#include "nn/lora.h"
#include "tests/messages.h"
#include "tests/nn/pretrained_folder.h"

using namespace lockstep;
using namespace testing;
using data::Json;

TEST_CASE("pretrained: layer_types of every family") {
  const Json full("full_attention"), window("sliding_attention");
  const auto options = [&](const char* type, Json::Array types) {
    Json config = data::read_json(golden + "/window_mistral/config.json");
    config["model_type"] = type, config["num_hidden_layers"] = 3, config["sliding_window"] = 8;
    config["layer_types"] = std::move(types);
    const nn::GPT::Options o = nn::options_from_config(config, "config.json");
    return std::pair(o.window, o.window_from);
  };
  CHECK(options("mistral", {window, window, window}) == std::pair<int64_t, int64_t>(8, 0));
  CHECK(options("mistral", {full, window, window}) == std::pair<int64_t, int64_t>(8, 1));
  CHECK(options("mistral", {full, full, full}) == std::pair<int64_t, int64_t>(0, 0));
  CHECK(options("llama", {full, full, full}) == std::pair<int64_t, int64_t>(0, 0));
  for (const Json::Array& types :
       {Json::Array{full, window, full}, Json::Array{window, window}, Json::Array{full, full, "conv"}})
    CHECK(contains(message([&] { options("mistral", types); }),
                   "layer_types: expected 'full_attention' for the first of 3"));
  CHECK(contains(message([&] {
                   options("llama", {full, window, full});
                 }),
                 "layer_types: expected 'full_attention' for all, got \"sliding_attention\""));
}

TEST_CASE("pretrained: every key that Transformers writes is used, or without effect, or refused") {
  const Json families = data::read_json(std::string(golden_folder()) + "/transformers_keys.json");
  CHECK(families.as_object().size() == 4);
  for (const auto& [type, config] : families.as_object()) {
    const nn::GPT::Options wanted = nn::options_from_config(config, "config.json");
    for (const auto& [key, value] : config.as_object()) {
      CAPTURE(key);
      Json changed = config;
      changed[key] = "wrong";
      nn::GPT::Options got = wanted;
      const std::string said = message([&] { got = nn::options_from_config(changed, "config.json"); });
      CHECK(got == wanted);
      if (key == "eos_token_id") continue;  // tested through eos_tokens()
      CHECK((said == "(no error)") == nn::is_without_effect(key));
      CHECK((nn::is_without_effect(key) || contains(said, key)));
      changed[key] = value;
      CHECK(nn::options_from_config(changed, "config.json") == wanted);
    }
  }
  Json config = families.at("llama");
  config["rms_norm_eps"] = INFINITY;
  CHECK(contains(message([&] { nn::options_from_config(config, "c"); }),
                 "c: rms_norm_eps: expected a finite number, got inf"));
  config = families.at("gpt2");
  for (const char* key : {"add_cross_attention", "is_encoder_decoder", "per_layer_config"}) {
    config[key] = true;
    CHECK(contains(message([&] { nn::options_from_config(config, "c"); }), str("c: ", key, " true is not supported")));
    config[key] = Json();
  }
}

TEST_CASE("pretrained: other files of a folder are copied to folders made from it") {
  struct Row {
    std::string type;
    Json::Object config, generation;
  };
  const Json ends = Json::Array{Json(2), Json(7)};
  const Row rows[] = {
      {"llama_main",
       {{"bos_token_id", 3},
        {"eos_token_id", 2},
        {"pad_token_id", 5},
        {"initializer_range", 0.01},
        {"use_cache", false}},
       {{"eos_token_id", ends}, {"temperature", 0.6}, {"do_sample", true}}},
      {"window_qwen2", {{"bos_token_id", Json()}, {"eos_token_id", ends}, {"attention_dropout", 0.125}}, {}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.type);
    Folder folder(row.type);
    for (const auto& [key, value] : row.config) folder.config[key] = value;
    folder.config["someones_length"] = 1e30;
    folder.write();
    std::string text = Json(row.generation).dump();
    if (!row.generation.empty()) folder.at.write("generation_config.json", text.insert(1, "\"top\": Infinity, "));
    const auto model = nn::from_pretrained(folder.at.str());
    const TempDir saved, again, merged;
    const auto adapted = nn::from_pretrained(folder.at.str());
    nn::Lora lora = nn::add_lora(*adapted, {.r = 2});
    lora.merge();  // untrained adapters change nothing
    nn::save_pretrained(*adapted, merged.str());
    nn::save_pretrained(*model, saved.str());
    nn::save_pretrained(*nn::from_pretrained(saved.str()), again.str(), {.tokenizer = saved.str()});
    for (const TempDir* at : {&saved, &again, &merged}) {
      const Json config = data::read_json(*at / "config.json"),
                 generation = data::read_json(*at / "generation_config.json");
      for (const auto& [key, value] : row.config) CHECK((key == "eos_token_id" || config.at(key) == value));
      for (const auto& [key, value] : row.generation) CHECK(generation.at(key) == value);
      CHECK(config.at("eos_token_id") == ends);
      CHECK(nn::eos_tokens(at->str()) == std::vector<int64_t>{2, 7});
      CHECK(same(*model, *nn::from_pretrained(at->str())));
    }
    // Another tokenizer defines other ids; one that defines none keeps the model's.
    again.write("generation_config.json", R"({"eos_token_id": 9})"), again.write("config.json", "{}");
    nn::save_pretrained(*model, saved.str(), {.tokenizer = again.str()});
    CHECK(data::read_json(saved / "config.json").at("eos_token_id") == Json(9));
    CHECK(data::read_json(saved / "config.json").at("pad_token_id").is_null());
    nn::save_pretrained(*model, saved.str(), {.tokenizer = TempDir().str()});
    CHECK(data::read_json(saved / "config.json").at("eos_token_id") == ends);
  }
  // its config.json has dropout rates, summary_... and other keys
  const auto gpt2 = nn::from_pretrained(std::string(golden_folder()) + "/hf_gpt2_odd");
  const TempDir at;
  nn::save_pretrained(*gpt2, at.str());
  const Json before = data::read_json(std::string(golden_folder()) + "/hf_gpt2_odd/config.json"),
             after = data::read_json(at / "config.json");
  for (const auto& [key, value] : before.as_object())
    if (nn::is_without_effect(key))
      CHECK_MESSAGE((after.find(key) && *after.find(key) == value), key, " was ", value.dump());
}
