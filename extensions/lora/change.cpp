// Adapters in programs: the key "lora" of a run's config.json, the words after the folder in --init, adapter folders.
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "base/suggest.h"
#include "extensions/hugging_face/format.h"
#include "extensions/hugging_face/tokenizer.h"
#include "extensions/lora/adapter.h"
#include "extensions/lora/low_rank.h"
#include "extensions/quantization/quantize.h"
#include "nn/init.h"
#include "train/json_paths.h"
#include "train/model_format.h"

namespace lockstep::train {

using data::Json;

namespace {

/// Calls fn(key, option) for each option of adapters.
template <class Options, class Fn> void each_lora_option(Options&& o, const Fn& fn) {
  fn("r", o.r);
  fn("alpha", o.alpha);
  fn("dropout", o.dropout);
  fn("rslora", o.rslora);
  fn("targets", o.targets);
  fn("modules_to_save", o.modules_to_save);
}

using train::read_as;
void read_as(const Json& from, std::vector<std::string>& to, const std::string& where) {
  if (from.is_string()) return void(to = split(from.as_string(), '+'));
  for (const Json& word : from.as_array(where)) to.push_back(word.as_string(where));
}

/// Options of adapters as JSON for a run's config.json.
Json facts_of(const nn::LoraOptions& options) {
  Json facts(Json::Object{});
  each_lora_option(options, [&](const char* key, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const std::vector<std::string>&>)
      facts[key] = Json::Array(value.begin(), value.end());
    else facts[key] = value;
  });
  return facts;
}

nn::LoraOptions lora_options(const Json& facts, const std::string& where) {
  nn::LoraOptions options;
  each_lora_option(options, [&](const char* key, auto& to) {
    if (const Json* value = facts.find(key)) read_as(*value, to, where + ": " + key);
  });
  return options;
}

void add_adapters(nn::GPT& model, const Json& facts, const std::string& where) {
  if (const Json* lora = facts.find("lora")) nn::add_lora(model, lora_options(*lora, where + ": lora"));
}

/// Reads the words after FOLDER in "FOLDER,lora=8,alpha=16,targets=q_proj+v_proj": the rank of the adapters, keys of
/// nn::LoraOptions, and quantize. Adds them to `changes`.
void read_words(const Json& words, const std::string& said, const std::string& option, Json& changes) {
  const Json* const rank = words.find("lora");
  LOCKSTEP_CHECK(rank, said, ": expected lora=RANK, the rank of the adapters");
  nn::LoraOptions o = lora_options(words, option);
  o.r = rank->as_int(option + ": lora");
  std::string codes;
  if (const Json* quantize_word = words.find("quantize")) codes = quantize_word->as_string(option + ": quantize");
  if (!codes.empty()) nn::quantize_options(codes);  // fail now rather than later
  LOCKSTEP_CHECK(o.r >= 1 && o.r <= 1 << 20, option, ": expected lora from 1 to 1048576, got ", o.r);
  LOCKSTEP_CHECK(o.alpha > 0, option, ": expected alpha above 0, got ", o.alpha);
  LOCKSTEP_CHECK(o.dropout >= 0 && o.dropout < 1, option, ": expected dropout from 0 to below 1, got ", o.dropout);
  changes["lora"] = facts_of(o);
  if (!codes.empty()) changes["quantize"] = codes;
}

constexpr const char* base_key = "base-model";

/// load() takes the base's folder; models that are no adapters have none.
void refuse_base(nn::GPT&, const Json& facts, const std::string& where) {
  LOCKSTEP_CHECK(!facts.find(base_key), "--base-model: expected the folder of an adapter with it, got ", where,
                 ", a model of its own; leave --base-model out");
}

LanguageModel load(const std::string& folder, const ModelLoadOptions& options) {
  ModelLoadOptions of_base{.dtype = options.dtype};
  std::string given;
  for (const auto& [key, value] : options.changes.as_object())
    if (key == base_key) given = value.as_string("--base-model");
    else of_base.changes[key] = value;
  LanguageModel m = load_hugging_face(nn::adapter_base(folder, given), of_base);
  nn::load_adapter(*m.model, folder);
  if (data::has_tokenizer(folder)) m.folder = folder;
  return m;
}

void save(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
          const std::string& tokenizer) {
  std::optional<nn::BuildEmpty> empty(std::in_place);
  nn::GPT full(sizes);
  // `state` contains quantized weights, so the model must be quantized before load_state().
  if (const Json* codes = start.changes.find("quantize"))
    nn::quantize(full, nn::quantize_options(codes->as_string("quantize")));
  const nn::Lora lora = nn::add_lora(full, lora_options(start.changes.at("lora", "--init"), "--init"));
  empty.reset();
  full.load_state(state);
  nn::save_adapter(full, lora, folder, std::filesystem::absolute(start.folder).lexically_normal());
  data::copy_tokenizer(tokenizer, folder);
}

}  // namespace

std::vector<ModelChange> lora_changes() {
  return {{.key = "lora",
           .apply = add_adapters,
           .adds_parameters = true,
           .start_words = {"lora", "alpha", "dropout", "rslora", "targets", "modules_to_save", "quantize"},
           .start_help = "; with ,lora=RANK only adapters are trained: "
                         "FOLDER,lora=8,alpha=16,dropout=0,rslora=false,targets=q_proj+v_proj,modules_to_save=head,"
                         "quantize=group8|group4|row8|dynamic|llm_int8",
           .start = read_words},
          {.key = base_key,
           .apply = refuse_base,
           .help = "of an adapter: folder of its base model, in place of its base_model_name_or_path"}};
}

std::vector<ModelFormat> lora_formats() {
  return {{.name = "Hugging Face folder",
           .is_model = nn::is_adapter,
           .load = load,
           .export_help = "its adapters as peft's",
           .exports = [](const Start& start) { return start.changes.find("lora") != nullptr; },
           .prepare_export = prepare_hugging_face,
           .save = save}};
}

}  // namespace lockstep::train
