#pragma once
// Streams and a kernel for planted bugs in host code.
#include <simt_cpu.h>  // tests/cudasim/

#include "tests/cudasim/mutants/mutants.h"

namespace mutants {

/// Elements and bytes of the test arrays.
constexpr size_t n = 64, bytes = n * sizeof(float);

/// The kernel out = x * by; start_scale() launches it and returns false if that fails.
inline void scale(const float* x, float* out, float by) { out[threadIdx.x] = x[threadIdx.x] * by; }
inline bool start_scale(cudaStream_t stream, const float* x, float* out, float by) {
  return simt::launch("scale", 1, unsigned(n), 0, stream, scale, x, out, by) == cudaSuccess;
}

/// Pinned host memory filled with `value`.
inline float* pinned(float value) {
  float* p = nullptr;
  cudaMallocHost(reinterpret_cast<void**>(&p), bytes);
  for (size_t i = 0; i < n; ++i) p[i] = value;
  return p;
}

}  // namespace mutants
