#pragma once
// GPT-2 models in Hugging Face's folders: config.json, model.safetensors, tokenizer files.
#include <memory>
#include <string>

#include "nn/models/gpt.h"

namespace lockstep::nn {

/// A GPT's sizes as programs take them: "gpt:LAYERSxWIDTHxHEADS", with the rest from `usual`; or a GPT-2's config.json,
/// or the folder of one.
GPT::Options gpt_options(const std::string& text, const GPT::Options& usual = {});
/// Reads config.json and model.safetensors. Error that names file and key when the model is not a GPT-2 we can run.
std::unique_ptr<GPT> load_hugging_face(const std::string& folder);
/// Writes the two files, atomically each, and those of the tokenizer; Transformers'
/// GPT2LMHeadModel.from_pretrained(folder) reads them.
void save_hugging_face(GPT& model, const std::string& folder, const std::string& tokenizer);
/// Transformers' name of one of our parameters ("blocks.0.mlp.up.weight" -> "transformer.h.0.mlp.c_fc.weight"), and
/// whether it is stored transposed there (Conv1D keeps weights as (in, out)).
struct HuggingFaceName {
  std::string name;
  bool transposed;
};
HuggingFaceName hugging_face_name(const std::string& ours);

}  // namespace lockstep::nn
