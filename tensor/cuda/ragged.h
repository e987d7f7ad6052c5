#pragma once
// Vectors along rows that may end within a vector.
#include "tensor/cuda/warp.h"

namespace lockstep::on_cuda {

/// Loads elements i to i + V - 1 of a row of n elements. With `ragged`, n need not be a multiple of V: positions after
/// the end of the row give `beyond`.
template <int V, bool ragged, class T>
__device__ inline Vector<T, V> load_part(const T* row, int64_t i, int64_t n, T beyond) {
  const auto* const full = reinterpret_cast<const Vector<T, V>*>(row + i);
  if constexpr (ragged) {
    if (i + V > n) {
      Vector<T, V> x;
#pragma unroll
      for (int j = 0; j < V; ++j) x.v[j] = i + j < n ? row[i + j] : beyond;
      return x;
    }
  }
  return *full;
}
/// Rounds V values and stores those within the row.
template <int V, bool ragged, class T, class A>
__device__ inline void store_part(T* row, int64_t i, int64_t n, const A* values) {
  if constexpr (ragged) {
    if (i + V > n) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (i + j < n) row[i + j] = T(Compute<T>(values[j]));
      }
      return;
    }
  }
  store_values<V>(row + i, values);
}

}  // namespace lockstep::on_cuda
