#pragma once
// Collective operations of threads: sums and maxima over a warp or a block, in a fixed order, so that every thread and
// every run gets the same bits. Also the loop over a row that a group of threads shares.
#include <cmath>
#include <limits>

#include "tensor/cuda/vector.h"

namespace lockstep::on_cuda {

/// Threads of a warp, and the mask of all its lanes.
inline constexpr int warp = 32;
inline constexpr unsigned whole_warp = 0xffffffffu;
/// Positive infinity.
template <class A> inline constexpr A infinity = std::numeric_limits<A>::infinity();

/// e^x to about one unit in the last place; on the GPU, one instruction of the special function unit plus a few others.
__device__ inline float exp_of(float x) { return ::expf(x); }
__device__ inline double exp_of(double x) { return ::exp(x); }
__device__ inline float log_of(float x) { return ::logf(x); }
__device__ inline double log_of(double x) { return ::log(x); }
__device__ inline float root_of(float x) { return ::sqrtf(x); }
__device__ inline double root_of(double x) { return ::sqrt(x); }
/// b if either is NaN.
template <class A> __device__ inline A larger_of(A a, A b) { return a > b ? a : b; }

/// Sum and maximum over `width` neighbouring lanes (a power of two). Every lane of the warp calls it and gets the
/// result of its group.
template <int width = warp, class A> __device__ inline A warp_sum(A x) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) x += __shfl_xor_sync(whole_warp, x, step);
  return x;
}
template <int width = warp, class A> __device__ inline A warp_max(A x) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) x = larger_of(x, __shfl_xor_sync(whole_warp, x, step));
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

/// Sum and maximum over the threads that share a row: a warp (threads == 32; a block may hold several, in y), or a
/// whole block along x.
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

// --- rows ---
// A group of threads walks along a row, V neighbours per thread and step. Rows of up to held_values elements per thread
// stay in registers, so they are read from memory once however often they are walked; longer rows are read again in
// every pass (mostly from L2).

template <class T> inline constexpr int held_values = sizeof(Compute<T>) == 8 ? 8 : 16;

/// V aligned neighbours at once, converted to A; store_values() rounds them back to T.
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

/// A row of n elements at `data`, shared by `threads` threads, in registers if `held`.
template <class T, int threads, int V, bool held> struct Row {
  using A = Compute<T>;
  static constexpr int steps = held ? held_values<T> / V : 1;

  const T* data;
  int64_t n;
  A values[steps * V];

  __device__ Row(const T* data, int64_t n) : data(data), n(n) {
    if constexpr (held) {
#pragma unroll
      for (int k = 0; k < steps; ++k) {
        const int64_t i = (int64_t(k) * threads + threadIdx.x) * V;
        if (i < n) load_values<V>(data + i, values + k * V);
      }
    }
  }

  /// Calls fn(i, v) for this thread's parts: v[0] to v[V - 1] are elements i to i + V - 1. fn may change v; if the row
  /// is held, the next walk sees the changes.
  template <class Fn> __device__ void each(Fn fn) {
    if constexpr (held) {
#pragma unroll
      for (int k = 0; k < steps; ++k) {
        const int64_t i = (int64_t(k) * threads + threadIdx.x) * V;
        if (i < n) fn(i, values + k * V);
      }
    } else {
#pragma unroll 4
      for (int64_t i = int64_t(threadIdx.x) * V; i < n; i += int64_t(threads) * V) {
        load_values<V>(data + i, values);
        fn(i, values);
      }
    }
  }

  /// The largest value and the sum of exp(value - largest), in one walk (Milakov and Gimelshein, 2018).
  __device__ void sum_of_exp(A& largest, A& sum) {
    A most = -infinity<A>, part = 0;                                        // maximum and sum of this thread
    const auto base_of = [](A x) { return x == -infinity<A> ? A(0) : x; };  // only -inf so far: avoids NaN
    each([&](int64_t, const A* v) {
      A top = most;
      for (int j = 0; j < V; ++j) top = larger_of(v[j], top);
      part *= exp_of(most - base_of(top));
      most = top;
      for (int j = 0; j < V; ++j) part += exp_of(v[j] - base_of(top));
    });
    largest = group_max<threads>(most);
    sum = group_sum<threads>(part * exp_of(most - base_of(largest)));
  }
};

/// Walks along two rows of the same length: fn(i, index into the thread's values, values of a, values of b).
template <class T, int threads, int V, bool held, class Fn>
__device__ inline void both(Row<T, threads, V, held>& a, Row<T, threads, V, held>& b, Fn fn) {
  if constexpr (held) {
#pragma unroll
    for (int k = 0; k < Row<T, threads, V, held>::steps; ++k) {
      const int64_t i = (int64_t(k) * threads + threadIdx.x) * V;
      if (i < a.n) fn(i, k * V, a.values + k * V, b.values + k * V);
    }
  } else {
    a.each([&](int64_t i, Compute<T>* v) {
      load_values<V>(b.data + i, b.values);
      fn(i, 0, v, b.values);
    });
  }
}

/// Shape of blocks that walk along rows with `threads` threads per row; short rows share a block, one warp each.
template <int threads> struct RowBlocks {
  static constexpr int in_block = threads == warp ? 4 : 1;
  /// The rows of a group: first(), then every step()-th.
  __device__ static int64_t first() { return int64_t(blockIdx.x) * in_block + threadIdx.y; }
  __device__ static int64_t step() { return int64_t(gridDim.x) * in_block; }
  /// The shape of a launch over `rows` rows.
  static dim3 block() { return dim3(threads, in_block); }
  static dim3 grid(int64_t rows) { return dim3(cuda::blocks_for(rows, in_block)); }
};

/// Calls fn.template operator()<threads, V, held>() for rows of n elements of T. `pointers`: where the rows of each
/// tensor of the operation start (null counts as aligned). No tensor has elements wider than T.
template <class T, class Fn> void with_row_shape(int64_t n, std::initializer_list<const void*> pointers, Fn&& fn) {
  constexpr int wide = sizeof(T) == 8 ? 1 : int(16 / sizeof(T));
  bool aligned = n % wide == 0;
  for (const void* p : pointers) aligned &= reinterpret_cast<uintptr_t>(p) % 16 == 0;
  if (aligned && wide > 1) {
    if (n <= 32 * held_values<T>) return fn.template operator()<32, wide, true>();
    if (n <= 128 * held_values<T>) return fn.template operator()<128, wide, true>();
    if (n <= 512 * held_values<T>) return fn.template operator()<512, wide, true>();
    return fn.template operator()<1024, wide, false>();
  }
  // Each variant costs nvcc seconds per architecture; unaligned rows make do with two.
  if (n <= 128 * held_values<T>) return fn.template operator()<128, 1, true>();
  fn.template operator()<1024, 1, false>();
}

/// dispatch() over the floating-point types.
template <class Fn> void for_floats(const char* op, const Tensor& x, Fn&& fn) {
  dispatch<float, double, Half, BFloat16>(x.dtype(), op, fn);
}
/// The data of x, or nullptr if x is undefined.
template <class T> const T* data_or_null(const Tensor& x) { return x.defined() ? x.data<T>() : nullptr; }
template <class T> T* data_or_null(Tensor& x) { return x.defined() ? x.data<T>() : nullptr; }

}  // namespace lockstep::on_cuda
