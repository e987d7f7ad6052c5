#pragma once
// The fixed order in which gradients are summed. It gives the same bits for any distribution of a batch over ranks.
//
// The leaves of a binary tree are the micro-batches of a step, 0 .. M-1. A rank holds M / world consecutive leaves. If
// M and world are powers of two, these leaves form a complete subtree. The rank sums its subtree by itself, and the
// exchange (the algorithm `direct`) adds the upper part of the tree.
//
//        ((g0+g1)+(g2+g3)) + ((g4+g5)+(g6+g7))
//
//   2 ranks x 4 leaves: rank 0 computes the left bracket, rank 1 the right one, and the exchange the + in the middle.
//   4 x 2 and 8 x 1 add in the same order.
#include <bit>
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::dist {

/// The position at which the leaves [begin, end), two or more, are split. The left part's number of leaves is
/// the largest power of two below end - begin.
inline int64_t tree_split(int64_t begin, int64_t end) {
  return begin + int64_t(std::bit_floor(uint64_t(end - begin - 1)));
}

/// Adds tensors, which arrive one after another, in the order of the tree. Works like a binary counter: at any time it
/// keeps at most 1 + log2(count) partial sums.
class TreeSum {
 public:
  /// Adds the next leaf, which must be contiguous. Sums are computed in the memory of the leaves: pass a copy if the
  /// tensor is still needed.
  void add(Tensor leaf);
  int64_t count() const { return count_; }  ///< leaves so far
  /// The partial sums: entry k is the sum of 2^k leaves, or undefined.
  const std::vector<Tensor>& levels() const { return levels_; }
  /// The sum of all leaves so far, in tree order; undefined if there are none. Resets the object.
  Tensor take();

 private:
  std::vector<Tensor> levels_;  // levels_[k], when defined, holds the sum of 2^k leaves
  int64_t count_ = 0;
};

}  // namespace lockstep::dist
