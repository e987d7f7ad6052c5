#pragma once
// Weights of a model from checkpoints of any kind, and into a folder.
#include <functional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/build_empty.h"
#include "nn/models/gpt.h"

namespace lockstep::inference {

/// Gives a model that is whole the values of a Hugging Face folder, of a folder of checkpoints (any plan;
/// "model.NAME"), or of safetensors files, under our names or Hugging Face's. One that was built empty stays so, and
/// starts with them. `group`: ranks that call it together; null: this one alone.
void start_with_checkpoint(nn::GPT& model, const std::vector<std::string>& files, dist::ProcessGroup* group,
                           const std::function<void(const std::string&)>& warn);

/// A folder that loads at any number of ranks: Hugging Face's, or, of a model with experts, a checkpoint. state: whole
/// tensors of model's parameters; of experts those of this rank. tokenizer: a folder whose files go with it, or "".
void save_model(const nn::GPT::Options& options, const nn::State& state, bool has_experts, const std::string& folder,
                const std::string& tokenizer, dist::ProcessGroup* group);

/// The state of a model whose weights are in codes: a file and a config.json.
inline constexpr const char* codes_file = "quantized.safetensors";
void save_codes(nn::GPT& model, const nn::State& state, const std::string& folder, dist::ProcessGroup* group);
/// What a safetensors file holds.
nn::Held held_in(const std::string& file);

}  // namespace lockstep::inference
