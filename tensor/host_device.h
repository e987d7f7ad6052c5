#pragma once
// LOCKSTEP_HD marks functions that run both on the CPU and in CUDA kernels.
#if defined(__CUDACC__)
#define LOCKSTEP_HD __host__ __device__
#else
#define LOCKSTEP_HD
#endif

namespace lockstep {

/// condition ? a : b for scalars; tensor/cpu/split_vector.h adds a lane-wise overload for its vectors.
template <class Condition, class V> LOCKSTEP_HD inline V choose(const Condition& condition, const V& a, const V& b) {
  return condition ? a : b;
}

}  // namespace lockstep
