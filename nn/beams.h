#pragma once
// Beam search as Transformers has it.
#include "nn/generate.h"

namespace lockstep::nn {

/// The num_return_sequences best continuations of a prompt, best first. Each step looks at the 2 num_beams (more with
/// several end tokens) likeliest continuations of the beams; those that end are kept by sum of log probabilities /
/// length ^ length_penalty, the best others go on. `empty`: a cache for each block.
std::vector<Generated> beam_search(GPT& model, const std::vector<int64_t>& prompt, const Generation& generation,
                                   const std::vector<KvCache>& empty);

}  // namespace lockstep::nn
