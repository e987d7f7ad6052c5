#pragma once
// Pads models whose heads or widths the number of ranks does not divide. The padded model computes the same function.
// Examples ("|" separates ranks):
//
//   3 heads, 2 ranks             0 1 | 2 -        a head of zeros; its columns of out_proj are zeros, too
//   4 heads, 1 kv head, 2 ranks  0 1 | 2 3        kv head 0 on both ranks
//   width 50, 4 ranks            13 | 13 | 13 | 11 and two units of zeros
#include <vector>

#include "nn/module.h"

namespace lockstep::inference {

/// For each head of the padded model, the original head that it copies; -1: zeros.
struct HeadPlan {
  std::vector<int64_t> queries, keys;
};
/// The smallest plan with numbers of heads that are multiples of `ranks`. Repeats key/value heads if that is enough,
/// otherwise adds heads of zeros.
HeadPlan plan_heads(int64_t heads, int64_t kv_heads, int ranks);

/// A parameter that was enlarged along `dim`. from: for each new index, the original index that it copies; -1: zeros.
struct Widened {
  Variable parameter;
  int dim = 0;
  std::vector<int64_t> from;
  Tensor widened(const Tensor& tensor) const;  ///< `tensor` padded
  /// Removes the padding from `tensor`.
  Tensor narrowed(const Tensor& tensor) const;
};
/// Pads a model before tensor parallelism over `ranks`; returns the enlarged parameters. Parameters that were built
/// empty remain empty.
std::vector<Widened> fit_to_ranks(nn::Module& model, int ranks);

}  // namespace lockstep::inference
