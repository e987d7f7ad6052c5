#pragma once
// Decides which rank holds which tokens of a shared sequence, and which scores a rank computes in each step of ring
// attention. P ranks share T tokens, T/P each.
//
//                          ranks of parts 0 .. 2P-1   causal attention
//   contiguous, 4 ranks    0 0 1 1 2 2 3 3            rank 0 sees one block of keys, rank 3 sees four
//   zigzag, 4 ranks        0 1 2 3 3 2 1 0            rank r has parts r and 2P-1-r: equal work in every step
#include <optional>
#include <string_view>

#include "tensor/ops.h"

namespace lockstep::sequence {

/// Orders in which ranks hold the tokens of a sequence.
enum class TokenOrder { contiguous, zigzag };
std::string_view name_of(TokenOrder order);  ///< "contiguous" or "zigzag"

/// Positions of a rank's tokens in the sequence, i64, ascending. Error unless `ranks` (in zigzag order: 2 * ranks)
/// divides `tokens`.
Tensor positions(int64_t tokens, int ranks, int rank, TokenOrder order);
/// A rank's part of x along `dim`, a copy.
Tensor slice(const Tensor& x, int64_t dim, int ranks, int rank, TokenOrder order);
/// The inverse of slice(): returns the whole tensor from the part parts[r] of each rank r.
Tensor join(const std::vector<Tensor>& parts, int64_t dim, TokenOrder order);

/// The block of scores that a rank computes in one step: rows query .. query + queries - 1 of its queries, with rows
/// key .. key + keys - 1 of the keys that the rank holds in that step.
struct ScoreBlock {
  int64_t query = 0, queries = 0, key = 0, keys = 0;
  bool causal = false;  ///< true: row i sees keys j <= i; false: every key
  friend bool operator==(const ScoreBlock&, const ScoreBlock&) = default;
};
/// The rank whose keys and values `rank` holds in `step`, 0 .. ranks - 1. Blocks move from each rank to the next.
inline int owner(int ranks, int rank, int step) { return (rank - step + ranks) % ranks; }
/// The scores to compute in a step; nullopt if no query of the rank sees a key that the rank holds in that step.
/// `tokens`: tokens per rank.
std::optional<ScoreBlock> piece(int64_t tokens, int ranks, int rank, int step, TokenOrder order, bool causal);
/// Number of scores in a piece, at most the square of the tokens per rank; 0 for nullopt.
double scores(const std::optional<ScoreBlock>& piece);

}  // namespace lockstep::sequence
