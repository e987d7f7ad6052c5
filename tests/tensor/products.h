#pragma once
// Shared by tests of matrix products: operands whose sums are exact, and reference products in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/ops.h"
#include "tests/tolerances.h"

namespace testing::products {
using namespace lockstep;

/// Small integers over 8: every product and short sum is exact in f32 and in f16.
inline Tensor values(const Shape& shape, uint32_t seed, DType dtype = f32) {
  std::vector<double> v(size_t(numel_of(shape)));
  uint32_t state = seed * 2654435761u + 1;
  for (double& x : v) {
    state = state * 1664525u + 1013904223u;
    x = (int(state >> 24) % 17 - 8) / 8.0;
  }
  return Tensor::from(v, shape).to(dtype);
}

/// The row-major product of (batch, m, k) and (batch, k, n) in double.
inline std::vector<double> reference(const Tensor& a, const Tensor& b, int64_t batch, int64_t m, int64_t n, int64_t k) {
  const auto va = a.to_vector<double>(), vb = b.to_vector<double>();
  std::vector<double> out(size_t(batch * m * n), 0);
  for (int64_t t = 0; t < batch; ++t)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t p = 0; p < k; ++p)
        for (int64_t j = 0; j < n; ++j)
          out[size_t((t * m + i) * n + j)] += va[size_t((t * m + i) * k + p)] * vb[size_t((t * k + p) * n + j)];
  return out;
}

/// Checks |got - wanted| <= tolerance max(1, |wanted|) for all elements.
inline void check_close(const Tensor& got, const std::vector<double>& wanted, double tolerance) {
  const auto v = got.to_vector<double>();
  REQUIRE(v.size() == wanted.size());
  double worst = 0;
  for (size_t i = 0; i < v.size(); ++i)
    worst = std::max(worst, std::abs(v[i] - wanted[i]) / std::max(1.0, std::abs(wanted[i])));
  CHECK(worst <= tolerance);
}

/// The tolerance for products of values(): on the CPU one unit in the last place of a result in 16 bits.
inline double tolerance_of(DType dtype) {
  if (!default_device().is_cpu()) return tolerance(Near::product_gelu, dtype);
  return dtype == f64 ? 1e-14 : dtype == f32 ? 1e-5 : dtype == f16 ? 1e-3 : 8e-3;
}

}  // namespace testing::products
