#pragma once
// Inputs of matrix products, and comparisons of results on the device with those of the CPU.
#include <algorithm>
#include <vector>

#include "tests/cuda/against_cpu.h"

namespace lockstep::testing {

/// Integers divided by 8.
inline Tensor values(const Shape& shape, uint32_t seed, DType dtype) {
  std::vector<double> v(size_t(numel_of(shape)));
  uint32_t state = seed * 2654435761u + 1;
  for (double& x : v) {
    state = state * 1664525u + 1013904223u;
    x = (int(state >> 24) % 17 - 8) / 8.0;
  }
  const Tensor made = empty(shape, {.dtype = f64, .device = cpu});
  std::copy(v.begin(), v.end(), made.data<double>());
  return made.to(dtype);
}

inline bool close(const Tensor& there, const Tensor& here, Near what = Near::product) {
  REQUIRE(there.device() == cuda0);
  REQUIRE(there.shape() == here.shape());
  const double bound = tolerance(what, here.dtype());
  return allclose(there.to(cpu).to(f64), here.to(f64), bound, bound);
}

}  // namespace lockstep::testing
