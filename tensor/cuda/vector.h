#pragma once
// Vectorised access: up to 16 bytes in one load or store.
#include "tensor/cuda/element.h"

namespace lockstep::on_cuda {

/// V consecutive elements, aligned to their size (at most 16 bytes).
template <class T, int V> struct alignas(V * sizeof(T) <= 16 ? V * sizeof(T) : 16) Vector { T v[V]; };

/// The number of elements that fit in 16 bytes, for the widest of these types.
template <class... T> inline constexpr int vector_length = int(16 / std::max({sizeof(T)...}));

/// True if p is aligned for loads of v elements.
template <class T> bool is_aligned(const T* p, int v) {
  return reinterpret_cast<uintptr_t>(p) % (size_t(v) * sizeof(T)) == 0;
}

/// Loads V consecutive elements, aligned to the vector's size. If `once`, loads only *p and returns V copies of it.
template <int V, class T> __device__ inline Vector<T, V> load_run(const T* p, bool once) {
  Vector<T, V> x;
  if (!once) {
    x = *reinterpret_cast<const Vector<T, V>*>(p);
  } else {
    const T only = *p;
#pragma unroll
    for (int j = 0; j < V; ++j) x.v[j] = only;
  }
  return x;
}

/// How V elements lie in memory: consecutive and aligned, or a stride apart.
enum class Access : uint8_t { run, apart };

/// Loads the first `count` of V elements. The rest of the vector repeats the last one loaded.
template <int V, class T>
__device__ inline Vector<T, V> load_vector(const T* p, Access access, int64_t stride, int count) {
  Vector<T, V> x;
  if (access == Access::run && count == V) {
    x = *reinterpret_cast<const Vector<T, V>*>(p);
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) x.v[j] = p[(j < count ? j : count - 1) * stride];
  }
  return x;
}

/// Stores the first `count` of V elements.
template <int V, class T>
__device__ inline void store_vector(T* p, const Vector<T, V>& x, Access access, int64_t stride, int count) {
  if (access == Access::run && count == V) {
    *reinterpret_cast<Vector<T, V>*>(p) = x;
  } else {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if (j < count) p[j * stride] = x.v[j];
    }
  }
}

}  // namespace lockstep::on_cuda
