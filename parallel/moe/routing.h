#pragma once
// Which token goes to which expert, on the host: a list of rows by expert, and what does not fit.
//
//   tokens   a b c d e f        choices 1 0 1 1 0 1        capacity 3
//   expert 0:  b e
//   expert 1:  a c d   (f is dropped: only the residual connection carries it on)
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::moe {

struct Routing {
  /// Of every row: by expert; within one, first choices first, then in the order of the tokens.
  std::vector<int64_t> token;
  std::vector<int64_t> choice;  ///< of every row: token * top_k + which choice of it
  std::vector<int64_t> rows;    ///< of every expert
  std::vector<int64_t> chosen;  ///< tokens that wanted it; more than `rows` where some were dropped
  int64_t dropped() const;
};

/// Tokens that one expert takes from one rank, as DeepSpeed: ceil(tokens / experts * factor * top_k), or min_capacity.
int64_t capacity(int64_t tokens, int64_t experts, int64_t top_k, double factor, int64_t min_capacity);

/// choices[token * top_k + i]: expert of a token's choice i. capacity < 0: nothing is dropped. Of too many, those with
/// the highest `priority` (one for every choice) stay; without priorities the first ones.
Routing route(const std::vector<int64_t>& choices, int64_t top_k, int64_t experts, int64_t capacity,
              const std::vector<double>& priority = {});

}  // namespace lockstep::moe
