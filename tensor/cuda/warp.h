#pragma once
// Collective operations of threads: sums and maxima over a warp or a block, in a fixed order, so that every thread and
// every run gets the same bits. Also loads and stores of vectors that convert to and from the type of the computation.
#include <cmath>
#include <limits>

#include "tensor/cuda/device_math.h"
#include "tensor/cuda/vector.h"

namespace lockstep::on_cuda {

/// The number of threads in a warp, and the mask of all its lanes.
inline constexpr int warp = 32;
inline constexpr unsigned full_warp = 0xffffffffu;
/// Positive infinity.
template <class A> inline constexpr A infinity = std::numeric_limits<A>::infinity();

/// The larger of a and b; b if either is NaN.
template <class A> __device__ inline A larger_of(A a, A b) { return a > b ? a : b; }

/// Sum and maximum over `width` neighbouring lanes (a power of two). Every lane of the warp calls it and gets the
/// result of its group.
template <int width = warp, class A> __device__ inline A warp_sum(A x) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) x += __shfl_xor_sync(full_warp, x, step);
  return x;
}
template <int width = warp, class A> __device__ inline A warp_max(A x) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) x = larger_of(x, __shfl_xor_sync(full_warp, x, step));
  return x;
}

/// Reduces one value of each warp with `join`, through shared memory, in the order of the warps. All threads of the
/// block call it; all get the result.
template <int threads, class A, class Join> __device__ inline A join_warps(A x, Join join) {
  LOCKSTEP_SHARED(A, of_warp, [threads / warp]);
  __syncthreads();  // the values of the previous call have been read
  if (threadIdx.x % warp == 0) of_warp[threadIdx.x / warp] = x;
  __syncthreads();
  A all = of_warp[0];
#pragma unroll
  for (int i = 1; i < threads / warp; ++i) all = join(all, of_warp[i]);
  return all;
}

/// Sum and maximum over the threads that share a row. If `threads` is 32, they are a warp, and a block may have a warp
/// for each threadIdx.y. Otherwise they are a whole block of `threads` threads.
template <int threads, class A> __device__ inline A group_sum(A x) {
  x = warp_sum(x);
  if constexpr (threads > warp) x = join_warps<threads>(x, [](A a, A b) { return a + b; });
  return x;
}
template <int threads, class A> __device__ inline A group_max(A x) {
  x = warp_max(x);
  if constexpr (threads > warp) x = join_warps<threads>(x, [](A a, A b) { return larger_of(a, b); });
  return x;
}

/// Loads V neighbouring elements as one vector and converts them to A. store_values() rounds numbers to T and stores
/// them.
template <int V, class T, class A> __device__ inline void load_values(const T* from, A* values) {
  const Vector<T, V> x = *reinterpret_cast<const Vector<T, V>*>(from);
#pragma unroll
  for (int j = 0; j < V; ++j) values[j] = A(Compute<T>(x.v[j]));
}
template <int V, class T, class A> __device__ inline void store_values(T* to, const A* values) {
  Vector<T, V> x;
#pragma unroll
  for (int j = 0; j < V; ++j) x.v[j] = T(Compute<T>(values[j]));
  *reinterpret_cast<Vector<T, V>*>(to) = x;
}

/// dispatch() over the floating-point types.
template <class Fn> void for_floats(const char* op, const Tensor& x, Fn&& fn) {
  dispatch<float, double, Half, BFloat16>(x.dtype(), op, fn);
}
/// The data of x, or nullptr if x is undefined.
template <class T> const T* data_or_null(const Tensor& x) { return x.defined() ? x.data<T>() : nullptr; }
template <class T> T* data_or_null(Tensor& x) { return x.defined() ? x.data<T>() : nullptr; }

}  // namespace lockstep::on_cuda
