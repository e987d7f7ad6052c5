// The files beside the weights in Hugging Face's folders: keys of config.json, and what is kept when a model is saved
// again.
#include <doctest/doctest.h>

#include <cmath>

#include "extensions/hugging_face/config.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tests/noted_folders.h"
#include "tests/messages.h"

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
    CHECK_ERROR(options("mistral", types), "layer_types: expected 'full_attention' for the first of 3");
  CHECK_ERROR(options("llama", {full, window, full}),
              "layer_types: expected 'full_attention' for all, got \"sliding_attention\"");
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
  CHECK_ERROR(nn::options_from_config(config, "c"), "c: rms_norm_eps: expected a finite number, got inf");
  config = families.at("gpt2");
  for (const char* key : {"add_cross_attention", "is_encoder_decoder", "per_layer_config"}) {
    config[key] = true;
    CHECK_ERROR(nn::options_from_config(config, "c"), str("c: ", key, " true is not supported"));
    config[key] = Json();
  }
}

TEST_CASE("pretrained: other files of a folder are copied to folders made from it") {
  for (const NotedFolder& row : noted_folders()) {
    CAPTURE(row.type);
    Folder folder(row.type);
    row.write(folder);
    const auto model = nn::from_pretrained(folder.at.str());
    const TempDir saved, again;
    nn::save_pretrained(*model, saved.str());
    nn::save_pretrained(*nn::from_pretrained(saved.str()), again.str(), {.tokenizer = saved.str()});
    for (const TempDir* at : {&saved, &again}) {
      row.check(at->str());
      CHECK(same(*model, *nn::from_pretrained(at->str())));
    }
    // Another tokenizer defines other ids. With a tokenizer that defines none, the model's ids are kept.
    again.write("generation_config.json", R"({"eos_token_id": 9})"), again.write("config.json", "{}");
    nn::save_pretrained(*model, saved.str(), {.tokenizer = again.str()});
    CHECK(data::read_json(saved / "config.json").at("eos_token_id") == Json(9));
    CHECK(data::read_json(saved / "config.json").at("pad_token_id").is_null());
    nn::save_pretrained(*model, saved.str(), {.tokenizer = TempDir().str()});
    CHECK(data::read_json(saved / "config.json").at("eos_token_id") == noted_ends);
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
