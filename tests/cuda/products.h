#pragma once
// Inputs of matrix products, and comparisons of results on the device with those of the CPU.
#include "tests/cuda/against_cpu.h"
#include "tests/tensor/products.h"

namespace testing {
using namespace lockstep;

/// Integers divided by 8, on the CPU.
inline Tensor values(const Shape& shape, uint32_t seed, DType dtype) {
  return products::values(shape, seed, dtype).to(cpu);
}

inline bool close(const Tensor& there, const Tensor& here, Near what = Near::product) {
  REQUIRE(there.device() == cuda0);
  REQUIRE(there.shape() == here.shape());
  const double bound = tolerance(what, here.dtype());
  return allclose(there.to(cpu).to(f64), here.to(f64), bound, bound);
}

}  // namespace testing
