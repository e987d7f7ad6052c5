// The starting point of a training: reads --init, loads the model, and exports the trained model or its adapters.
#include "train/lora.h"

#include <filesystem>
#include <iostream>

#include "base/suggest.h"
#include "data/tokenizer.h"
#include "nn/build_empty.h"
#include "nn/hugging_face/adapter.h"
#include "nn/hugging_face/pretrained.h"
#include "train/cli.h"
#include "train/job.h"
#include "train/words.h"

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

void read_as(const Json& from, std::vector<std::string>& to, const std::string& where) {
  if (from.is_string()) return void(to = split(from.as_string(), '+'));
  for (const Json& word : from.as_array(where)) to.push_back(word.as_string(where));
}

}  // namespace

Start read_start(const std::string& text, const std::string& origin) {
  if (text.find(',') == text.npos || std::filesystem::exists(text)) return {text};
  const auto [folder, values] =
      parse_words(text, {"lora", "alpha", "dropout", "rslora", "targets", "modules_to_save", "quantize"}, origin);
  const Json* const rank = values.find("lora");
  LOCKSTEP_CHECK(rank, origin, " ", text, ": expected lora=RANK, the rank of the adapters");
  Start start{folder, lora_options(values, origin)};
  start.lora->r = rank->as_int(origin + ": lora");
  if (const Json* how = values.find("quantize")) start.quantize = how->as_string(origin + ": quantize");
  if (!start.quantize.empty()) nn::quantize_options(start.quantize);  // fail now rather than later
  const nn::LoraOptions& o = *start.lora;
  LOCKSTEP_CHECK(o.r >= 1 && o.r <= 1 << 20, origin, ": expected lora from 1 to 1048576, got ", o.r);
  LOCKSTEP_CHECK(o.alpha > 0, origin, ": expected alpha above 0, got ", o.alpha);
  LOCKSTEP_CHECK(o.dropout >= 0 && o.dropout < 1, origin, ": expected dropout from 0 to below 1, got ", o.dropout);
  return start;
}

std::unique_ptr<nn::GPT> from_start(const Start& start) {
  nn::PretrainedOptions options{.dtype = f32};
  if (!start.quantize.empty()) options.quantize = nn::quantize_options(start.quantize);
  return nn::from_pretrained(start.folder, options);
}

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

void prepare_export(const Job& job, const std::string& folder) {
  prepare_output("--export", folder);
  const Json* const sparse = job.file().find("sparse_attention");
  if (sparse && sparse->is_object())
    std::cerr << "warning: --export " << folder << ": Hugging Face's format cannot store sparse_attention: readers "
              << "will attend to all tokens; a run's folder (--out) stores it\n";
}

void export_model(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
                  const std::string& tokenizer) {
  std::optional<nn::BuildEmpty> empty(std::in_place);
  nn::GPT whole(sizes);
  std::optional<nn::Lora> lora;
  // `state` contains quantized weights, so the model must be quantized before load_state().
  if (!start.quantize.empty()) nn::quantize(whole, nn::quantize_options(start.quantize));
  if (start.lora) lora = nn::add_lora(whole, *start.lora);
  empty.reset();
  whole.load_state(state);
  if (std::filesystem::exists(start.folder + "/config.json"))
    whole.notes = std::make_shared<const nn::FolderNotes>(nn::folder_notes(start.folder));
  if (!lora) return nn::save_pretrained(whole, folder, {.tokenizer = tokenizer});
  nn::save_adapter(whole, *lora, folder, std::filesystem::absolute(start.folder).lexically_normal());
  data::copy_tokenizer(tokenizer, folder);
}

}  // namespace lockstep::train
