#pragma once
// Who has which tokens of a sequence that ranks share, and which scores a rank computes in a step of ring attention.
//
//   contiguous, 4 ranks:   0 0 1 1 2 2 3 3        rank r: part r. Causal: rank 0 sees one block of keys, rank 3 four.
//   zigzag, 4 ranks:       0 1 2 3 3 2 1 0        rank r: parts r and 2P-1-r. Causal: all do the same, in every step.
//
// P ranks, T tokens of the sequence, so T/P at each rank.
#include <optional>
#include <string>
#include <string_view>

#include "tensor/ops.h"

namespace lockstep::sequence {

enum class Order { contiguous, zigzag };
std::string_view name_of(Order order);

/// Positions in the sequence of the tokens of a rank, ascending, i64. Error when `tokens` does not divide by `ranks`
/// (zigzag: 2 ranks).
Tensor positions(int64_t tokens, int ranks, int rank, Order order);
/// A rank's part of x along `dim`.
Tensor slice(const Tensor& x, int64_t dim, int ranks, int rank, Order order);
/// The whole of which parts[r] is rank r's part.
Tensor join(const std::vector<Tensor>& parts, int64_t dim, Order order);

/// Scores that a rank computes in one step: rows of its queries against rows of the keys that it holds then.
struct Piece {
  int64_t query = 0, queries = 0, key = 0, keys = 0;
  bool causal = false;  ///< row i sees key j <= i; else every key
  friend bool operator==(const Piece&, const Piece&) = default;
};
/// Whose keys and values a rank holds in step 0 .. ranks - 1: they go from each rank to the next.
inline int owner(int ranks, int rank, int step) { return (rank - step + ranks) % ranks; }
/// Nothing when no query of the rank sees any of these keys. `tokens`: of each rank.
std::optional<Piece> piece(int64_t tokens, int ranks, int rank, int step, Order order, bool causal);
/// Scores of a step, of all `tokens`^2 of a block.
double scores(const std::optional<Piece>& piece);

/// The steps of causal ring attention as a picture (SVG), both orders: a row per rank, a box per block of scores, grey
/// where a rank waits for the one with the most. Error for more than 16 ranks.
std::string draw_svg(int ranks);

}  // namespace lockstep::sequence
