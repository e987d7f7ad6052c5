// Adapters in peft's folders: the logits that peft computes (golden/, by tests/interop/lora.py), round trips, and
// rejected files.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tests/golden_folders.h"
#include "extensions/lora/adapter.h"
#include "nn/init.h"
#include "tests/apart.h"
#include "tests/devices.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace testing;
using data::Json;

namespace {

const std::string adapters = golden_folder();

/// A copy of the golden adapter of a Llama.
struct AdapterFolder : Folder {
  AdapterFolder() : Folder(adapters + "/llama", "adapter_config.json", "adapter_model.safetensors") {}
};

}  // namespace

TEST_CASE("adapter: folders of peft give the logits of peft") {
  const OnCpu on_cpu;
  for (const std::string name : {"llama", "gpt2"}) {
    INFO(name);
    const std::string folder = adapters + "/" + name;
    CHECK(nn::is_adapter(folder));
    const std::string base = nn::adapter_base(folder);
    CHECK(!nn::is_adapter(base));
    const auto expected = data::SafeTensors::open(folder + "/expected.safetensors");
    const Tensor ids = expected.tensor("input_ids"), logits = expected.tensor("logits");
    for (const DType dtype : {f32, f64}) {
      const auto model = nn::from_pretrained(base, {.dtype = dtype});
      CHECK(max_difference((*model)(ids).tensor(), logits) > 0.1);
      nn::Lora lora = nn::load_adapter(*model, folder);
      CHECK(max_difference((*model)(ids).tensor(), logits) <= 1e-5);
      lora.merge();
      CHECK(max_difference((*model)(ids).tensor(), logits) <= 1e-5);
    }
    std::unique_ptr<nn::GPT> empty;
    {
      const nn::BuildEmpty scope;
      empty = nn::from_pretrained(base);
      nn::load_adapter(*empty, folder);
    }
    nn::fill(*empty);
    CHECK(max_difference((*empty)(ids).tensor(), logits) <= 1e-5);
  }
}

TEST_CASE("adapter: saving and loading give the same adapter, with peft's names") {
  const OnCpu on_cpu;
  for (const std::string name : {"llama", "gpt2"}) {
    INFO(name);
    const std::string folder = adapters + "/" + name;
    const auto model = nn::from_pretrained(nn::adapter_base(folder)),
               again = nn::from_pretrained(nn::adapter_base(folder));
    nn::Lora lora = nn::load_adapter(*model, folder);
    const TempDir to;
    nn::save_adapter(*model, lora, to.str(), nn::adapter_base(folder));
    CHECK(nn::adapter_base(to.str()) == nn::adapter_base(folder));
    const nn::Lora loaded = nn::load_adapter(*again, to.str());
    CHECK(same(*model, *again));
    const auto theirs = data::SafeTensors::open(folder + "/adapter_model.safetensors"),
               ours = data::SafeTensors::open(to / "adapter_model.safetensors");
    auto names = ours.names();
    REQUIRE(names.size() == theirs.names().size());
    for (const std::string& tensor : names) CHECK_MESSAGE(equal(ours.tensor(tensor), theirs.tensor(tensor)), tensor);
    const Json config = data::read_json(to / "adapter_config.json");
    for (const char* key : {"r", "lora_alpha", "use_rslora", "bias", "peft_type", "task_type", "fan_in_fan_out"})
      CHECK_MESSAGE(config.at(key) == data::read_json(folder + "/adapter_config.json").at(key), key);
    if (name == "llama") CHECK(config.at("target_modules").dump() == R"(["down_proj", "k_proj", "q_proj", "v_proj"])");
    lora.merge();
    CHECK_ERROR(nn::save_adapter(*model, lora, to.str(), ""), "call unmerge() first");
  }
}

TEST_CASE("adapter: options that would be another adapter are refused by name, and nothing is changed") {
  const OnCpu on_cpu;
  const auto base = [] { return nn::from_pretrained(nn::adapter_base(adapters + "/llama")); };
  const std::pair<const char*, const char*> said[]{{"use_dora", "true"},
                                                   {"loftq_config", R"({"loftq_bits": 4})"},
                                                   {"rank_pattern", "[4]"},
                                                   {"rank_pattern", R"({"q_proj": 0})"},
                                                   {"rank_pattern", R"({"q_proj": 1.5})"},
                                                   {"alpha_pattern", R"({"q_proj": "x"})"},
                                                   {"alpha_pattern", R"({"q_proj(": 4})"},
                                                   {"layers_to_transform", "[0]"},
                                                   {"layer_replication", "[[0, 1]]"},
                                                   {"lora_bias", "true"},
                                                   {"use_qalora", "true"},
                                                   {"target_parameters", R"(["mlp"])"},
                                                   {"trainable_token_indices", "[1]"},
                                                   {"a_key_of_tomorrow", "7"},
                                                   {"bias", R"("all")"},
                                                   {"init_lora_weights", R"("pissa")"},
                                                   {"peft_type", R"("ADALORA")"},
                                                   {"task_type", R"("SEQ_CLS")"},
                                                   {"target_modules", R"(".*_prj")"},
                                                   {"target_modules", R"("(.*_proj")"},
                                                   {"target_modules", "5"},
                                                   {"target_modules", R"(["q_proj", "w_proj"])"},
                                                   {"target_modules", R"(["q_proj"])"},
                                                   {"target_modules", R"("all-linear")"},
                                                   {"modules_to_save", R"(["norm", "wte"])"},
                                                   {"modules_to_save", "null"},
                                                   {"r", "4"},
                                                   {"r", "0"}};
  const auto model = base();
  const auto parameters = model->parameters().size();
  for (const auto& [key, value] : said) {
    AdapterFolder folder;
    folder.config[key] = data::parse_json(value, key);
    const std::string text = message([&] { nn::load_adapter(*model, folder.write()); });
    const std::set<std::string> of_tensors{R"(["q_proj"])", R"("all-linear")", "null", "4"};
    CHECK_MESSAGE(contains(text, of_tensors.contains(value) ? "adapter_model.safetensors: " : key), text);
    CHECK_MESSAGE(text != "(no error)", folder.config.dump());
    CHECK(model->parameters().size() == parameters);
    CHECK(model->parameters()[0].requires_grad());
  }
  AdapterFolder missing, wrong, other, pickled;
  missing.tensors.pop_back();
  CHECK_ERROR(nn::load_adapter(*model, missing.write()), "expected a tensor 'base_model.model.");
  wrong.tensors[1].second = wrong.tensors[1].second.t().contiguous();
  CHECK_ERROR(nn::load_adapter(*model, wrong.write()), "of shape");
  other.tensors[0].first = "model.layers.0.x";
  CHECK_ERROR(nn::load_adapter(*model, other.write()), "whose names begin with base_model.model.");
  std::filesystem::remove(pickled.write() + "/adapter_model.safetensors");
  CHECK_ERROR(nn::load_adapter(*model, pickled.at.str()), "expected adapter_model.safetensors");
  CHECK_ERROR(nn::adapter_base(pickled.at.str()), "expected base_model_name_or_path to be the folder");
  CHECK(model->parameters().size() == parameters);
}

TEST_CASE("adapter: saving is an Error if peft has no name for a part") {
  const OnCpu on_cpu;
  const TempDir to;
  const auto refusal = [&](const std::string& base, const nn::LoraOptions& options) {
    const auto model = nn::from_pretrained(nn::adapter_base(adapters + "/" + base));
    const nn::Lora lora = nn::add_lora(*model, options);
    return message([&] { nn::save_adapter(*model, lora, to.str(), ""); });
  };
  CHECK(contains(refusal("llama", {.targets = {"in_proj"}}), "use q_proj, k_proj and v_proj"));
  CHECK(contains(refusal("gpt2", {.targets = {"q_proj"}}), "use in_proj"));
  CHECK(contains(refusal("gpt2", {.modules_to_save = {"head"}}), "tied to the head"));
  CHECK(refusal("gpt2", {.modules_to_save = {"mlp.up"}}) == "(no error)");
}

TEST_CASE("adapter: regular expressions choose the Linears, as their list does") {
  const OnCpu on_cpu;
  const auto expected = data::SafeTensors::open(adapters + "/llama/expected.safetensors");
  for (const char* pattern :
       {R"(.*\.(self_attn\.[qkv]|mlp\.down)_proj)", R"(model\.layers\.\d+\..*(q|k|v|down)_proj$)"}) {
    AdapterFolder folder;
    folder.config["target_modules"] = pattern;
    const auto model = nn::from_pretrained(nn::adapter_base(adapters + "/llama"), {.dtype = f32});
    nn::load_adapter(*model, folder.write());
    CHECK(max_difference((*model)(expected.tensor("input_ids")).tensor(), expected.tensor("logits")) <= 1e-5);
  }
}

TEST_CASE("adapter: ranks and alphas of single targets, saved, loaded and merged") {
  const OnCpu on_cpu;
  const auto base = [] { return nn::from_pretrained(nn::adapter_base(adapters + "/llama"), {.dtype = f64}); };
  const auto model = base(), again = base();
  nn::Lora lora = nn::add_lora(*model, {.r = 3,
                                        .alpha = 6,
                                        .targets = {"q_proj", "v_proj", "down"},
                                        .rank_pattern = {{"v_proj", 5}, {"attention.v_proj", 2}},
                                        .alpha_pattern = {{"down", 9}}});
  for (const nn::Lora::Adapter& one : lora.adapters())
    for (const nn::Linear& b : one.low_rank->b) b.weight.tensor().copy_(mul_scalar(randn(b.weight.shape()), 0.1));
  const nn::LowRank &first = *lora.adapters()[0].low_rank, &down = *lora.adapters()[1].low_rank;
  CHECK(first.a.weight.size(0) == 3 + 2);
  CHECK(first.parts[1].scale == 3);  // 6 / 2
  CHECK(down.parts[0].scale == 3);   // 9 / 3
  const Tensor ids = randint(0, model->o.vocab, {2, 7});
  const Tensor logits = (*model)(ids).tensor();
  const TempDir to;
  nn::save_adapter(*model, lora, to.str(), nn::adapter_base(adapters + "/llama"));
  const Json config = data::read_json(to / "adapter_config.json");
  CHECK(config.at("rank_pattern").at("model.layers.0.self_attn.v_proj") == Json(2));
  CHECK(config.at("alpha_pattern").at("model.layers.0.mlp.down_proj") == Json(9.));
  nn::load_adapter(*again, to.str());
  CHECK(equal((*again)(ids).tensor(), logits));
  lora.merge();
  CHECK(max_difference((*model)(ids).tensor(), logits) < 1e-9);
  const auto refused = [&](const nn::LoraOptions& options) {
    const auto fresh = base();
    return message([&] { nn::add_lora(*fresh, options); });
  };
  CHECK(contains(refused({.rank_pattern = {{"down", 4}}}), "rank_pattern: expected names of targets, got 'down'"));
  CHECK(contains(refused({.rank_pattern = {{"q_proj", 0}}}), "q_proj: expected a rank in [1, 1048576], got 0"));
  CHECK(contains(refused({.alpha_pattern = {{"q_proj", -1}}}), "expected a finite alpha > 0, got -1"));
}
