#pragma once
// How far apart tensors are.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/ops.h"

namespace testing {

/// The largest absolute difference; 1e9 if shapes differ.
inline double max_difference(const lockstep::Tensor& a, const lockstep::Tensor& b) {
  using namespace lockstep;
  return a.shape() != b.shape() ? 1e9 : a.numel() == 0 ? 0 : max(abs(sub(a.to(f64), b.to(f64)))).item();
}
/// The same for two lists of tensors; 1e9 if their lengths differ.
inline double max_difference(const std::vector<lockstep::Tensor>& a, const std::vector<lockstep::Tensor>& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double one = max_difference(a[i], b[i]);
    if (one > largest || std::isnan(one)) largest = one;
  }
  return largest;
}
/// The largest |a - b| / max(|b|, 1).
inline double max_relative_difference(const lockstep::Tensor& a, const lockstep::Tensor& b) {
  using namespace lockstep;
  REQUIRE(a.shape() == b.shape());
  const Tensor wanted = b.to(cpu).to(f64);
  return max(abs(a.to(cpu).to(f64) - wanted) / maximum(abs(wanted), ones({}, {.dtype = f64, .device = cpu}))).item();
}

}  // namespace testing
