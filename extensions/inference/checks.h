#pragma once
// Checks a configuration against a model. Each function raises an Error if they do not match. All run before the model
// is changed, except for check_memory().
#include "extensions/inference/config.h"
#include "extensions/quantization/quantize.h"
#include "nn/models/gpt.h"

namespace lockstep::inference {

/// Checks that the model has the experts that the configuration expects, and that max_out_tokens and min_out_tokens do
/// not exceed the model's context.
void check_model(const InferenceConfig& config, nn::GPT& model);
/// Checks that injection_policy names the layers whose outputs the model sums over ranks.
void check_policy(const InferenceConfig& config, nn::GPT& model);
/// Returns how to quantize the model if the configuration's dtype is int8: the coarsest format that has at least
/// quant.weight.q_groups scales per matrix.
nn::QuantizeOptions quantize_options(const InferenceConfig& config, nn::Module& model);
/// Checks that the keys and values of config.min_out_tokens tokens fit into free memory. Call it after sharding.
void check_memory(const InferenceConfig& config, nn::GPT& model);

}  // namespace lockstep::inference
