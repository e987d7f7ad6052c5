#pragma once
// Beam search with the semantics of Hugging Face Transformers.
#include "extensions/generation/generate.h"

namespace lockstep::nn {

/// The num_return_sequences best continuations of a prompt, best first. Each step considers the 2 * num_beams
/// most likely extensions of the beams (more with several end tokens). Ended beams are kept and ranked by score (see
/// length_penalty). The best num_beams of the other extensions continue. `empty`: one empty cache per model block.
std::vector<Generated> beam_search(GPT& model, const std::vector<int64_t>& prompt, const Generation& generation,
                                   const std::vector<KvCache>& empty);

}  // namespace lockstep::nn
