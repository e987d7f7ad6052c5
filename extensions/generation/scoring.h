#pragma once
// Scoring texts token by token: perplexity over overlapping windows, and log-likelihoods of continuations as benchmarks
// of language models need them.
#include <span>
#include <vector>

#include "data/tokenizer.h"
#include "nn/models/gpt.h"

namespace lockstep::train {

/// A sequence whose tokens from index `from` (at least 1) on are scored, given all tokens before them.
struct ToScore {
  std::vector<int64_t> ids;
  int64_t from;
};
/// The score of a sequence.
struct Scored {
  double logprob = 0;  ///< sum of natural logarithms
  bool greedy = true;  ///< true if every token is the most likely one (of equals, the lowest id)
  int64_t tokens = 0;
};
/// Scores sequences, several per forward pass. The score of a sequence does not depend on the other sequences.
std::vector<Scored> score(nn::GPT& model, std::span<const ToScore> all);

/// The loss of a text over overlapping windows, see loss_in_strides().
struct StridedLoss {
  double nats = 0, bits_per_byte = 0;  ///< nats: mean per token
  int64_t tokens = 0, bytes = 0;       ///< number and bytes of the scored tokens (all but the first)
};
/// Scores windows as long as the model's context; one starts every `stride` tokens. Each window after the first counts
/// only tokens not yet counted, so each of these has at least context - stride tokens before it in its window.
StridedLoss loss_in_strides(nn::GPT& model, const data::Tokenizer& tokenizer, const std::vector<int64_t>& ids,
                            int64_t stride);
/// Splits into context and continuation as lm-evaluation-harness does: white space at the end of the context belongs to
/// the continuation, both are encoded as one text, and an empty context becomes the begin-of-text token. Keeps at most
/// the last `limit` tokens. Error if no context is left before the continuation.
ToScore to_score(const data::Tokenizer& tokenizer, std::string context, std::string continuation, int64_t limit);

}  // namespace lockstep::train
