#pragma once
// Loading and saving of models in Hugging Face folders: config.json, model.safetensors (or shards with an index),
// tokenizer files. Supported model types: gpt2, llama, mistral, qwen2. Options that are refused: see README.md.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/json.h"
#include "extensions/quantization/quantize.h"
#include "nn/models/gpt.h"

namespace lockstep::nn {

/// Options from folder/config.json. Error, naming file and key, for unsupported models.
GPT::Options pretrained_options(const std::string& folder);
/// True if the folder contains weights, in one file or in shards.
bool is_pretrained(const std::string& folder);
/// Metadata of a folder besides weights and tokenizer. A model keeps it for save_pretrained(), as a
/// std::shared_ptr<const FolderNotes> in GPT::notes.
struct FolderNotes {
  data::Json config;      ///< config.json; an empty object if there is none
  data::Json generation;  ///< generation_config.json, plus token ids that only config.json has
};
/// Reads config.json and generation_config.json of a folder.
FolderNotes folder_notes(const std::string& folder);
/// The notes that a model keeps; nullptr if there are none.
const FolderNotes* folder_notes(const GPT& model);
/// Ids of end tokens, from generation_config.json, else config.json. Empty if both lack them, or if `folder` is "".
std::vector<int64_t> eos_tokens(const std::string& folder);

/// Options of from_pretrained(). Set at most one of quantize, load_in_8bit and load_in_4bit.
struct PretrainedOptions {
  std::optional<DType> dtype = {};  ///< default: dtype of the token embedding in the file
  /// Quantise each weight while it is read.
  std::optional<QuantizeOptions> quantize = {};
  bool load_in_8bit = false;  ///< LLM.int8 (row8, 8-bit activations, threshold 6), as in Transformers
  bool load_in_4bit = false;  ///< format group4
};
/// Loads the model of a folder. All names, shapes and options are checked before anything is allocated. Under a
/// BuildEmpty scope the model stays empty, and filling a part of it later reads only that part of the files.
std::unique_ptr<GPT> from_pretrained(const std::string& folder, const PretrainedOptions& options = {});
/// Loads the weights of a folder into an existing, unsharded model: parameters with values are overwritten at once,
/// empty ones start with the file's values. If the folder's options differ from the model's: Error, nothing changed.
void load_pretrained(GPT& model, const std::string& folder);
/// Loads the weights of safetensors files, without a config.json.
void load_pretrained(GPT& model, const std::vector<std::string>& files);

/// Options of save_pretrained().
struct PretrainedSaveOptions {
  /// Folder whose tokenizer files are copied; "": none. If this folder has a generation_config.json, that file is
  /// written; otherwise the one of the folder that the model was loaded from.
  std::string tokenizer = {};
  int64_t max_shard_size = 5'000'000'000;  ///< bytes per file; a larger tensor gets its own file
};
/// Writes a folder that Transformers' AutoModelForCausalLM.from_pretrained() and from_pretrained() can read. Each file
/// is replaced atomically, and stale files of an earlier save are removed. Token ids, and keys of config.json without
/// effect here, are taken from the folder that the model came from. Error if Transformers has no such model, or for
/// quantised weights.
void save_pretrained(GPT& model, const std::string& folder, const PretrainedSaveOptions& options = {});

/// Gives the model a vocabulary of `vocab` tokens, rounded up to a multiple: the rows of its table and head stay, those
/// beyond are dropped, and new rows are the mean of the old ones (as in Transformers, which adds noise that is 1e-9 of
/// their covariance). Call it before optimizers and engines exist, which keep the old tables. Returns the vocabulary.
int64_t resize_token_embeddings(GPT& model, int64_t vocab, int64_t pad_to_multiple_of = 1);

}  // namespace lockstep::nn
