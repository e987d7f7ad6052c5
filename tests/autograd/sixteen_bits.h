#pragma once
// Rows of operations whose results in f16 and bf16, values and gradients, are the f64 result, rounded once.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "tests/autograd/loss_inputs.h"

namespace lockstep {

/// The inputs: x[0] (6, 5), x[1] (5), x[2] probabilities (3, 5), x[3] their logarithms.
struct SixteenBitsRow {
  std::string name;
  std::function<Variable(const Inputs&)> fn;
  // extra error in units of the rounding of 1, for derivatives computed from an already rounded result
  double slack = 0;
};

/// Classes for the rows of x[0].
inline Tensor labels() { return Tensor::from<int64_t>({1, 0, 4, 2, 4, 3}, {6}).to(default_device()); }
/// The first or the last three rows of x[0].
inline Variable half_of(const Variable& x, bool first) { return x.narrow(0, first ? 0 : 3, 3); }

/// "" if `got` is `exact` rounded to its dtype; else the first difference.
inline std::string difference(const Tensor& got, const Tensor& exact, double slack) {
  const std::vector<double> a = got.to(cpu).to(f64).contiguous().to_vector<double>(),
                            b = exact.to(cpu).contiguous().to_vector<double>();
  const bool is_half = got.dtype() == f16, is_wide = got.dtype() == f32;
  const double epsilon = is_wide   ? 0x1p-22
                         : is_half ? 0x1p-11
                                   : 0x1p-8,
               largest = is_half ? 65504 : 3.38e38, smallest = is_half ? 0x1p-25 : 0x1p-134;
  double reach = 0;
  for (const double y : b)
    if (std::isfinite(y)) reach = std::max(reach, std::abs(y));
  for (size_t i = 0; i < a.size(); ++i) {
    const bool too_large = !(std::abs(b[i]) <= largest);
    if (too_large && (std::isinf(a[i]) || std::abs(a[i]) >= largest * 0.99)) continue;
    if (!too_large &&
        std::abs(a[i] - b[i]) <= 2.02 * epsilon * std::abs(b[i]) + 4e-6 * reach + slack * epsilon + 1.01 * smallest)
      continue;
    return str("element ", i, ": ", a[i], ", expected ", b[i]);
  }
  return "";
}

/// Checks the rows over all magnitudes.
inline void check_sixteen_bits(const std::vector<SixteenBitsRow>& rows) {
  for (const SixteenBitsRow& row : rows) {
    for (const DType dtype : {f16, bf16}) {
      for (const double magnitude : {1e-7, 1e-5, 1e-3, 0.1, 1., 20., 300., 6000., 3e4}) {
        manual_seed(11);
        Inputs low, exact;
        const auto draw = [](const Shape& shape, double max_value) {
          return sampled(shape, -max_value, max_value).tensor();
        };
        const Tensor probabilities = softmax(draw({3, 5}, 2), 1);
        for (const Tensor& values : {draw({6, 5}, 2 * magnitude), draw({5}, 1), probabilities, log(probabilities)}) {
          const Tensor rounded = values.to(dtype);
          low.push_back(Variable(rounded, true));
          exact.push_back(Variable(rounded.to(f64), true));
        }
        INFO("name ", row.name, ", dtype ", dtype, ", magnitude ", magnitude);
        const Variable y = row.fn(low), y_exact = row.fn(exact);
        // cross_entropy of class indices returns f32
        CHECK((y.dtype() == dtype || row.name.starts_with("cross_entropy")));
        CHECK(difference(y.tensor(), y_exact.tensor(), 0) == "");
        const Tensor up_low = sampled(y.shape(), 0.5, 2).tensor().to(y.dtype());
        y.backward(up_low);
        y_exact.backward(up_low.to(f64));
        for (size_t i = 0; i < low.size(); ++i) {
          if (!low[i].grad().defined()) continue;
          CAPTURE(i);
          CHECK(difference(low[i].grad(), exact[i].grad(), row.slack) == "");
        }
      }
    }
  }
}

}  // namespace lockstep
