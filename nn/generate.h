#pragma once
// Texts continued by a model: greedy, by draws, or by beams; several at a time, without padding.
#include "nn/models/gpt.h"
#include "nn/sampling.h"

namespace lockstep::nn {

/// The continuation of a prompt.
struct Generated {
  std::vector<int64_t> tokens;   ///< without the prompt; with the end token that it ended by
  std::vector<double> logprobs;  ///< natural logarithms, one a token, when asked for
  enum class Reason { length, eos, stop, context, caller } reason = Reason::length;
  double score = 0;  ///< of a beam
};

/// Continues every prompt, num_return_sequences times each, in this order. `emit` is told each token of each sequence
/// as it is made (beams: at the end) and may end a sequence by false. A sequence's tokens do not depend on the others,
/// nor on the number of threads.
std::vector<Generated> generate(GPT& model, std::span<const std::vector<int64_t>> prompts,
                                const Generation& generation = {},
                                const std::function<bool(size_t sequence, int64_t token)>& emit = {});
/// One prompt, and its first continuation.
Generated generate(GPT& model, const std::vector<int64_t>& prompt, const Generation& generation = {});

}  // namespace lockstep::nn
