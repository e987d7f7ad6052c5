#pragma once
// Assigns tokens to experts, on the host: a list of rows for each expert, without the tokens that do not fit.
//
//   token    a b c d e f
//   choice   1 0 1 1 0 1            capacity 3
//
//   expert 0:  b e
//   expert 1:  a c d                f is dropped: only the residual connection carries it on
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::moe {

/// The rows that experts process, sorted by expert.
struct Routing {
  /// The token of each row. An expert's rows are sorted by choice (first choices first), then by token.
  std::vector<int64_t> token;
  std::vector<int64_t> choice;  ///< token * top_k + number of the choice, for each row
  std::vector<int64_t> rows;    ///< rows of each expert
  std::vector<int64_t> chosen;  ///< tokens that chose each expert; more than `rows` if some were dropped
  int64_t dropped() const;      ///< choices that found their expert full
};

/// Number of tokens that an expert takes from one rank, as in DeepSpeed: max(ceil(tokens / experts * factor * top_k),
/// min_capacity).
int64_t capacity(int64_t tokens, int64_t experts, int64_t top_k, double factor, int64_t min_capacity);

/// Assigns tokens to experts: choices[token * top_k + i] is the expert of a token's choice i. If an expert is chosen
/// more than `capacity` times, it keeps the choices of the highest `priority` (one number per choice), or the first
/// ones if `priority` is empty. capacity < 0: nothing is dropped. Error for an expert out of range.
Routing route(const std::vector<int64_t>& choices, int64_t top_k, int64_t experts, int64_t capacity,
              const std::vector<double>& priority = {});

}  // namespace lockstep::moe
