#pragma once
// A tensor as lines along one dimension, for kernels.
#include "tensor/tensor.h"

namespace lockstep {

/// A contiguous tensor as (outer, n, inner): `n` is the dimension's size, `inner` the distance of neighbours along it.
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;

  Lines() = default;
  Lines(const Tensor& x, int dim) {
    if (x.dim() == 0) return;
    n = x.shape()[dim];
    for (int i = 0; i < x.dim(); ++i) (i < dim ? outer : inner) *= i == dim ? 1 : x.shape()[i];
  }
  /// Number of lines.
  LOCKSTEP_HD int64_t count() const { return outer * inner; }
  /// Index of the first element of a line.
  LOCKSTEP_HD int64_t start(int64_t line) const {
    return inner == 1 ? line * n : line / inner * n * inner + line % inner;
  }
};

}  // namespace lockstep
