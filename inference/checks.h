#pragma once
// Checks a configuration against a model before the model is changed. Each function raises an Error if they do not
// match.
#include "inference/config.h"
#include "nn/models/gpt.h"
#include "nn/quantize.h"

namespace lockstep::inference {

/// Checks experts, context, and features that are not built.
void check_model(const Config& config, nn::GPT& model);
/// Checks that injection_policy names the layers whose outputs the model sums over ranks.
void check_policy(const Config& config, nn::GPT& model);
/// The quantization of a model for dtype int8 and `quant`: the coarsest format with at least q_groups scales per
/// matrix.
nn::QuantizeOptions quantize_options(const Config& config, nn::GPT& model);
/// Checks that the keys and values of min_out_tokens fit into memory, after the model was cut.
void check_memory(const Config& config, nn::GPT& model);

}  // namespace lockstep::inference
