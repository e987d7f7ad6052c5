#pragma once
// Checks a configuration against a model. Each function raises an Error if they do not match. All run before the model
// is changed, except for check_memory().
#include "inference/config.h"
#include "nn/models/gpt.h"
#include "nn/quantize.h"

namespace lockstep::inference {

/// Checks the experts that the configuration expects, and its numbers of tokens against the model's context.
void check_model(const Config& config, nn::GPT& model);
/// Checks that injection_policy names the layers whose outputs the model sums over ranks.
void check_policy(const Config& config, nn::GPT& model);
/// The quantization of a model for dtype int8 and `quant`: the coarsest format with at least q_groups scales per
/// matrix.
nn::QuantizeOptions quantize_options(const Config& config, nn::GPT& model);
/// Checks that the cache of config.min_out_tokens tokens fits into free memory. Call it once the ranks share the model.
void check_memory(const Config& config, nn::GPT& model);

}  // namespace lockstep::inference
