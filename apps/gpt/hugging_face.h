#pragma once
// GPT-2 models in Hugging Face's folders: config.json, model.safetensors, tokenizer files.
#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "nn/gpt.h"

namespace apps {

/// Reads config.json and model.safetensors. Error that names file and key when the model is not a GPT-2 we can run.
std::unique_ptr<lockstep::nn::GPT> load_hugging_face(const std::string& folder);
/// Writes the two files, atomically each; Transformers' GPT2LMHeadModel.from_pretrained(folder) reads them.
void save_hugging_face(lockstep::nn::GPT& model, const std::string& folder);
/// Transformers' name of one of our parameters ("blocks.0.mlp.up.weight" -> "transformer.h.0.mlp.c_fc.weight"), and
/// whether it is stored transposed there (Conv1D keeps weights as (in, out)).
struct HuggingFaceName { std::string name; bool transposed; };
HuggingFaceName hugging_face_name(const std::string& ours);

/// The tokenizer in a folder, or bytes when it has none.
std::unique_ptr<lockstep::data::Tokenizer> load_tokenizer(const std::string& folder);

}  // namespace apps
