#pragma once
// The order in which a reduction visits a tensor. The tensor's dims are split into a loop nest over kept dims and a
// loop nest over reduced dims, each sorted by stride and simplified. The lanes of the vectors lie along the better of
// the two innermost dims.
#include "tensor/tensor.h"

namespace lockstep::on_cpu {

// A nest of loops over a tensor and, for kept dims, over the output.
struct Nest {
  int rank = 0;
  int64_t size[Dims::max_rank], x[Dims::max_rank], out[Dims::max_rank];  // sizes and strides, outermost first

  int64_t count() const {  ///< number of elements
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= size[i];
    return n;
  }
  // Inserts a dim. Dims are sorted by the stride of x, the smallest last; repeated elements (stride 0) go to the front.
  void insert(int64_t s, int64_t x_stride, int64_t out_stride) {
    const auto key = [](int64_t stride) { return stride == 0 ? INT64_MAX : stride; };
    int at = rank++;
    for (; at > 0 && key(x[at - 1]) < key(x_stride); --at)
      size[at] = size[at - 1], x[at] = x[at - 1], out[at] = out[at - 1];
    size[at] = s, x[at] = x_stride, out[at] = out_stride;
  }
  // Merges adjacent dims that can be one loop: the outer stride is the inner stride times the inner size.
  void simplify() {
    int last = 0;
    for (int i = 1; i < rank; ++i) {
      if (x[last] == x[i] * size[i] && out[last] == out[i] * size[i]) {
        size[last] *= size[i];
      } else {
        size[++last] = size[i];
      }
      x[last] = x[i], out[last] = out[i];
    }
    if (rank > 0) rank = last + 1;
  }
};

// A position in a nest of loops: the index of each loop, and the offsets of the element in x and out.
struct Walk {
  Walk(const Nest& nest, int64_t start) : nest(nest) {
    for (int d = nest.rank - 1; d >= 0; --d) {
      at[d] = start % nest.size[d];
      start /= nest.size[d];
      x += at[d] * nest.x[d], out += at[d] * nest.out[d];
    }
  }
  void next() {  ///< moves to the next element
    for (int d = nest.rank - 1; d >= 0; --d) {
      x += nest.x[d], out += nest.out[d];
      if (++at[d] < nest.size[d]) return;
      x -= nest.x[d] * nest.size[d], out -= nest.out[d] * nest.size[d];
      at[d] = 0;
    }
  }
  const Nest& nest;
  int64_t at[Dims::max_rank], x = 0, out = 0;
};

// The plan of a reduction.
struct ReducePlan {
  Nest kept, reduced;  // loops over kept and reduced dims, except the dim of the lanes
  bool lanes_reduced;
  int64_t lanes = 1, x_stride = 1, out_stride = 1;  // the dim of the lanes
};

/// Plans the reduction of x over the dims whose bits are set in `dims`; `out` will receive the result.
[[gnu::noinline]] inline ReducePlan make_reduce_plan(const Tensor& x, uint32_t dims, const Tensor& out) {
  ReducePlan plan;
  for (int i = 0; i < x.dim(); ++i) {
    if (x.shape()[i] == 1) continue;
    const bool reduced = dims >> i & 1;
    (reduced ? plan.reduced : plan.kept).insert(x.shape()[i], x.strides()[i], reduced ? 0 : out.strides()[i]);
  }
  plan.kept.simplify();
  plan.reduced.simplify();
  // The lanes take the innermost reduced or kept dim: the one with stride 1 and at least 16 elements, else the longer.
  const auto score = [](const Nest& nest) -> int64_t {
    if (nest.rank == 0) return 0;
    const int64_t n = nest.size[nest.rank - 1];
    return nest.x[nest.rank - 1] == 1 && n >= 16 ? INT64_MAX : n;
  };
  plan.lanes_reduced = score(plan.reduced) >= score(plan.kept);
  Nest& nest = plan.lanes_reduced ? plan.reduced : plan.kept;
  if (nest.rank > 0) {
    --nest.rank;
    plan.lanes = nest.size[nest.rank], plan.x_stride = nest.x[nest.rank], plan.out_stride = nest.out[nest.rank];
  }
  return plan;
}

}  // namespace lockstep::on_cpu
