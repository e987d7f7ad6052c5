#pragma once
// Loads a model's weights from checkpoints of any kind, and saves them.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/models/gpt.h"

namespace lockstep::inference {

/// Loads the weights of an unsharded model: from a Hugging Face folder, from a folder of Lockstep checkpoints, or from
/// safetensors files with the names of Lockstep or, for a GPT, Hugging Face. Parameters built empty (nn/init.h) are
/// read when they are filled. group: the ranks that call it together; null: a single process.
void start_with_checkpoint(nn::Module& model, const std::vector<std::string>& files, dist::ProcessGroup* group,
                           const std::function<void(const std::string&)>& warn);

/// Saves a model in a folder that any number of ranks can load: in Hugging Face's format, or as a checkpoint if the
/// model has experts. state: the parameters as whole tensors, and this rank's experts. tokenizer: folder of tokenizer
/// files to copy; "": none.
void save_model(const nn::GPT::Options& options, const nn::State& state, bool has_experts, const std::string& folder,
                const std::string& tokenizer, dist::ProcessGroup* group);

/// Saves any module: model.safetensors or, for a quantized one, codes_file. state: its parameters and buffers as whole
/// tensors.
void save_module(nn::Module& model, const nn::State& state, const std::string& folder, dist::ProcessGroup* group);

/// File name of quantized weights.
inline constexpr const char* codes_file = "quantized.safetensors";
/// Saves a quantized model: the codes of its weights (codes_file), and a config.json.
void save_codes(nn::GPT& model, const nn::State& state, const std::string& folder, dist::ProcessGroup* group);

}  // namespace lockstep::inference
