#pragma once
// Models in Hugging Face's folders: config.json, model.safetensors (or shards of it with an index), tokenizer files.
// model_type gpt2, llama, mistral and qwen2. What a folder may not hold, and why: docs/llama.md.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/json.h"
#include "nn/models/gpt.h"
#include "nn/quantize.h"

namespace lockstep::nn {

/// A decoder's sizes as programs take them: "gpt:LAYERSxWIDTHxHEADS" or "llama:LAYERSxWIDTHxHEADS", with the rest from
/// `usual`; or a config.json, or the folder of one.
GPT::Options gpt_options(const std::string& text, const GPT::Options& usual = {});
/// What folder/config.json says. Error that names file and key when it is of no model that we can run.
GPT::Options pretrained_options(const std::string& folder);
/// Whether there are weights, whole or in shards.
bool is_pretrained(const std::string& folder);
/// What a folder says beside weights and tokens: it goes with the model into folders that are made of it.
struct FolderNotes {
  data::Json config;      ///< config.json; no keys: there is none
  data::Json generation;  ///< generation_config.json, and ids of tokens that stand in config.json alone
};
FolderNotes folder_notes(const std::string& folder);
/// The tokens that end a text, by generation_config.json, or else config.json. Empty: the folder says none, or is "".
std::vector<int64_t> eos_tokens(const std::string& folder);

struct PretrainedOptions {
  std::optional<DType> dtype = {};  ///< default: that of the file's table of tokens
  /// Weights become codes one by one, as they are read.
  std::optional<QuantizeOptions> quantize = {};
  bool load_in_8bit = false;  ///< the same by LLM.int8 (row8, activations in 8 bits below 6), as Transformers' does
  bool load_in_4bit = false;  ///< the same by group4
};
/// The model of a folder. All names, shapes and options are checked before anything is made: an Error is one line.
/// Within BuildEmpty it stays empty, and who fills a part of it reads that part.
std::unique_ptr<GPT> from_pretrained(const std::string& folder, const PretrainedOptions& options = {});
/// The weights of a folder in a model that is there, whole and not yet cut: parameters with values get others at once,
/// those built empty start with the file's. Error, and nothing is changed, when the two are not of one kind.
void load_pretrained(GPT& model, const std::string& folder);
/// The same from safetensors files, without a config.json.
void load_pretrained(GPT& model, const std::vector<std::string>& files);

struct SaveOptions {
  /// Folder whose tokenizer is copied; its generation_config.json, if there is one, counts before the model's own
  /// notes. "": none.
  std::string tokenizer = {};
  int64_t max_shard_size = 5'000'000'000;  ///< bytes of a file; a larger tensor has one of its own
};
/// Writes what Transformers' AutoModelForCausalLM.from_pretrained() reads, and from_pretrained(); files are replaced
/// atomically each, and those of an earlier save that no longer count are removed. Ids of tokens, and keys of
/// config.json that change nothing here, are those of the folder that the model came from. Error when Transformers has
/// no model with these options.
void save_pretrained(GPT& model, const std::string& folder, const SaveOptions& options = {});

}  // namespace lockstep::nn
