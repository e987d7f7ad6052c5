#pragma once
// How likely a model finds a text, token by token: perplexity over windows that overlap, and continuations of contexts
// as benchmarks of language models ask for them.
#include <span>
#include <vector>

#include "data/tokenizer.h"
#include "nn/models/gpt.h"

namespace lockstep::train {

/// Tokens of which those from `from` on (at least 1) are scored, given all in front of them.
struct ToScore {
  std::vector<int64_t> ids;
  int64_t from;
};
struct Scored {
  double logprob = 0;  ///< sum of the natural logarithms
  bool greedy = true;  ///< each token is the likeliest one, the lowest id among equals
  int64_t tokens = 0;
};
/// One after another, several at a time; what is computed of one does not depend on the others.
std::vector<Scored> score(nn::GPT& model, std::span<const ToScore> all);

struct StridedLoss {
  double nats = 0, bits_per_byte = 0;  ///< nats: mean of a token
  int64_t tokens = 0, bytes = 0;       ///< that were counted: all but the first
};
/// Windows of the model's context, each `stride` tokens further; of every one but the first only the tokens that no
/// window before it had count, so each has context - stride tokens in front of it at least.
StridedLoss loss_in_strides(nn::GPT& model, const data::Tokenizer& tokenizer, const std::vector<int64_t>& ids,
                            int64_t stride);
/// Splits as lm-evaluation-harness does: blanks at the end of the context belong to the continuation, both are encoded
/// as one text, and an empty context is the token that begins a text. At most `most` tokens are kept, the last ones.
/// Error when nothing is left in front of the continuation.
ToScore to_score(const data::Tokenizer& tokenizer, std::string context, std::string continuation, int64_t most);

}  // namespace lockstep::train
