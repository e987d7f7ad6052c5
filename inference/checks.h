#pragma once
// What a configuration asks of a model, before anything of it is changed: an Error where it is another one.
#include "inference/config.h"
#include "nn/models/gpt.h"
#include "nn/quantize.h"

namespace lockstep::inference {

/// Experts, context, what is not built.
void check_model(const Config& config, nn::GPT& model);
/// Layers whose outputs ranks add up: the model says which, and injection_policy must say the same.
void check_policy(const Config& config, nn::GPT& model);
/// What dtype int8 and `quant` mean for a model: the coarsest format that has as many scales as q_groups asks for.
nn::QuantizeOptions quantize_options(const Config& config, nn::GPT& model);
/// Room for the keys and values of min_out_tokens, of a model that is cut.
void check_memory(const Config& config, nn::GPT& model);

}  // namespace lockstep::inference
