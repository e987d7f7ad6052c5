#pragma once
// How far tensors are apart.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tensor/ops.h"

namespace testing {

/// The largest absolute difference; 1e9 if shapes differ.
inline double apart(const lockstep::Tensor& a, const lockstep::Tensor& b) {
  using namespace lockstep;
  return a.shape() != b.shape() ? 1e9 : a.numel() == 0 ? 0 : max(abs(sub(a.to(f64), b.to(f64)))).item();
}
/// That of two lists; 1e9 if their lengths differ.
inline double apart(const std::vector<lockstep::Tensor>& a, const std::vector<lockstep::Tensor>& b) {
  double max_apart = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) max_apart = std::max(max_apart, apart(a[i], b[i]));
  return max_apart;
}
/// The largest difference, relative for values above 1.
inline double difference(const lockstep::Tensor& a, const lockstep::Tensor& b) {
  using namespace lockstep;
  REQUIRE(a.shape() == b.shape());
  const Tensor wanted = b.to(cpu).to(f64);
  return max(abs(a.to(cpu).to(f64) - wanted) / maximum(abs(wanted), ones({}, {.dtype = f64, .device = cpu}))).item();
}

}  // namespace testing
