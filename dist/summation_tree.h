#pragma once
// The one order in which gradients are summed (promise 1: the same bits however a batch is cut over ranks).
//
// The leaves of a binary tree are the micro-batches of a step, 0 .. M-1. A rank holds M / world of them, next to each
// other, so for powers of two its part is a whole subtree: it sums that by itself, and the exchange (`direct`) sums the
// rest.
//
//        ((g0+g1)+(g2+g3)) + ((g4+g5)+(g6+g7))       2 ranks x 4: rank 0 makes the left bracket, rank 1 the right one,
//                                                    the exchange the + between; 4 x 2 and 8 x 1 add in the same order.
#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::dist {

/// Where [begin, end) of more than one leaf is cut in two: the left part is the largest power of two below the size.
inline int64_t tree_split(int64_t begin, int64_t end) {
  return begin + int64_t(std::bit_floor(uint64_t(end - begin - 1)));
}

/// Sums tensors that arrive one after another in tree order: a binary counter of partial sums, log2(count) + 1 at most.
class TreeSum {
 public:
  /// Takes the next leaf, dense. Sums are made in its memory and in that of earlier leaves: give it away, or give a
  /// copy.
  void add(Tensor leaf);
  int64_t count() const { return count_; }
  /// The partial sums; some are undefined.
  const std::vector<Tensor>& levels() const { return levels_; }
  /// The sum of all leaves so far, in tree order; starts anew. Undefined when there were none.
  Tensor take();

 private:
  std::vector<Tensor> levels_;  // levels_[k], when defined, holds the sum of 2^k leaves
  int64_t count_ = 0;
};

}  // namespace lockstep::dist
