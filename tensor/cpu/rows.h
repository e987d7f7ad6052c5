#pragma once
// Shared by the row kernels (norm, batch_norm, loss): how rows are divided among threads, and sums over rows whose
// result has the same bits for any number of threads.
#include <vector>

#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/tensor.h"

namespace lockstep::on_cpu {

inline constexpr int64_t row_block = 64;  // rows per block; a sum over rows adds up each block first

/// The least number of rows that make it worthwhile to start another thread.
inline int64_t row_grain(int64_t columns) { return std::max<int64_t>(1, grain / std::max<int64_t>(columns, 1)); }

/// Calls fn<T>() with the floating dtype of x.
template <class Fn> void for_floats(const char* op, const Tensor& x, Fn&& fn) {
  dispatch<float, double, Half, BFloat16>(x.dtype(), op, fn);
}

/// Converts a weight or bias of n elements to the compute type A. If it is undefined, all n values are `missing`.
template <class A> std::vector<A> widen(const Tensor& parameter, int64_t n, A missing) {
  std::vector<A> values(size_t(n), missing);
  if (!parameter.defined()) return values;
  for_floats("parameter", parameter, [&]<class T> {
    const T* p = parameter.data<T>();
    for (int64_t i = 0; i < n; ++i) values[size_t(i)] = A(Acc<T>(p[i]));
  });
  return values;
}

/// total[c] = sum over blocks of partial[block * width + c], in order.
template <class A> void sum_blocks(const std::vector<A>& partial, int64_t blocks, int64_t width, A* total) {
  parallel_for((width + 63) / 64, std::max<int64_t>(1, grain / 64 / std::max<int64_t>(blocks, 1)),
               [&](int64_t first, int64_t last) {
                 for (int64_t start = first * 64; start < std::min(last * 64, width); start += 64) {
                   const int64_t length = std::min<int64_t>(64, width - start);
                   double sum[64] = {};
                   for (int64_t b = 0; b < blocks; ++b) {
                     const A* row = partial.data() + b * width + start;
                     for (int64_t c = 0; c < length; ++c) sum[c] += double(row[c]);
                   }
                   for (int64_t c = 0; c < length; ++c) total[start + c] = A(sum[c]);
                 }
               });
}

/// Rounds values into `out`, if that is defined.
template <class A> void narrow(const A* values, int64_t n, Tensor& out) {
  if (!out.defined()) return;
  for_floats("norm", out, [&]<class T> {
    for (int64_t i = 0; i < n; ++i) out.data<T>()[i] = T(Acc<T>(values[i]));
  });
}

}  // namespace lockstep::on_cpu
