#pragma once
// Models whose heads and widths the ranks do not divide, made so that they do, and compute the same.
//
//   3 heads, 2 ranks             0 1 | 2 -        one of zeros, whose column of out_proj is zeros, too
//   4 heads, 1 kv head, 2 ranks  0 1 | 2 3        kv head 0 on both ranks
//   width 50, 4 ranks            13 | 13 | 13 | 11 and two of zeros
#include <vector>

#include "nn/module.h"

namespace lockstep::inference {

/// Which of the old heads a new one is, in order; -1: zeros.
struct HeadPlan {
  std::vector<int64_t> queries, keys;
};
/// The fewest heads that `ranks` divide: key heads are repeated where that is enough, else heads of zeros are added.
HeadPlan plan_heads(int64_t heads, int64_t kv_heads, int ranks);

/// A parameter that was made larger along a dim: which old place each of its places is; -1: zeros.
struct Widened {
  Variable parameter;
  int dim = 0;
  std::vector<int64_t> from;
  Tensor widened(const Tensor& tensor) const;
  /// The way back.
  Tensor narrowed(const Tensor& tensor) const;
};
/// Before tensor parallelism over `ranks`. Parameters that were built empty stay so.
std::vector<Widened> fit_to_ranks(nn::Module& model, int ranks);

}  // namespace lockstep::inference
