#pragma once
// Text generation: greedy, sampled, or by beam search; several sequences at once, without padding.
#include "extensions/generation/sampling.h"
#include "nn/models/gpt.h"

namespace lockstep::nn {

/// The continuation of a prompt.
struct Generated {
  std::vector<int64_t> tokens;   ///< new tokens, including an end token
  std::vector<double> logprobs;  ///< natural log of each token's probability, if requested
  /// Cause of the end: max_new_tokens, an end token, a stop string, a full context, or `emit`.
  enum class Reason { length, eos, stop, context, caller } reason = Reason::length;
  double score = 0;  ///< score of the beam, if beam search was used
};

/// Continues every prompt, num_return_sequences times each; results are in the order of the prompts. `emit` is called
/// for each new token of each sequence (with beams, at the end) and ends the sequence by returning false. The tokens of
/// a sequence do not depend on the other sequences or on the number of threads.
std::vector<Generated> generate(GPT& model, std::span<const std::vector<int64_t>> prompts,
                                const Generation& generation = {},
                                const std::function<bool(size_t sequence, int64_t token)>& emit = {});
/// Continues one prompt once.
Generated generate(GPT& model, const std::vector<int64_t>& prompt, const Generation& generation = {});

/// Interface of objects that generate as generate() does, such as a train::ModelRunner on several ranks.
class Generates {
 public:
  virtual ~Generates() = default;
  /// See generate().
  virtual std::vector<Generated> generate(std::span<const std::vector<int64_t>> prompts, const Generation& generation,
                                          const std::function<bool(size_t sequence, int64_t token)>& emit) = 0;
};

}  // namespace lockstep::nn
