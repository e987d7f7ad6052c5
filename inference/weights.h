#pragma once
// Loads a model's weights from checkpoints of any kind, and saves them.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/build_empty.h"
#include "nn/models/gpt.h"

namespace lockstep::inference {

/// Loads the weights of a model that is not cut: from a Hugging Face folder, a folder of checkpoints (any plan;
/// "model.NAME"), or safetensors files with our names or Hugging Face's. Empty parameters are loaded when they are
/// filled. `group`: ranks that call it together; null: a single process.
void start_with_checkpoint(nn::GPT& model, const std::vector<std::string>& files, dist::ProcessGroup* group,
                           const std::function<void(const std::string&)>& warn);

/// Saves a model as a folder that loads with any number of ranks: in Hugging Face's format, or as a checkpoint if it
/// has experts. state: whole tensors of the parameters; experts only of this rank. tokenizer: folder whose files are
/// copied, or "".
void save_model(const nn::GPT::Options& options, const nn::State& state, bool has_experts, const std::string& folder,
                const std::string& tokenizer, dist::ProcessGroup* group);

/// File name of quantized weights.
inline constexpr const char* codes_file = "quantized.safetensors";
/// Saves a quantized model: its codes and a config.json.
void save_codes(nn::GPT& model, const nn::State& state, const std::string& folder, dist::ProcessGroup* group);
/// Number and bytes of the tensors in a safetensors file.
nn::Held held_in(const std::string& file);

}  // namespace lockstep::inference
