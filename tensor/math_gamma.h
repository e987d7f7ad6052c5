#pragma once
// Logarithm of the gamma function and its derivatives, computed in f64 for every type: by Stirling's series for large
// x, elsewhere by recurrence and reflection. The values at poles are PyTorch's.
#include <cmath>
#include <limits>
#include <numbers>

#include "tensor/host_device.h"

namespace lockstep::math {

/// The natural logarithm of |Gamma(x)|.
LOCKSTEP_HD inline double lgamma(double x) {
#if defined(__CUDA_ARCH__)
  return ::lgamma(x);
#else
  int sign;
  return ::lgamma_r(x, &sign);  // std::lgamma writes a global
#endif
}

inline constexpr double stirling_from = 10;  // from here on eight terms of the series are enough

/// Derivative of lgamma().
LOCKSTEP_HD inline double digamma(double x) {
  if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
  double y = 0;
  if (x < 0) {
    if (x == std::floor(x)) return std::numeric_limits<double>::quiet_NaN();
    y = -std::numbers::pi / std::tan(std::numbers::pi * (x - std::rint(x)));
    x = 1 - x;
  }
  for (; x < stirling_from; ++x) y -= 1 / x;
  const double s = 1 / (x * x);
  const double tail =
      s * (1. / 12 - s * (1. / 120 - s * (1. / 252 - s * (1. / 240 - s * (1. / 132 - s * (691. / 32760 - s / 12))))));
  return y + (std::log(x) - 0.5 / x - tail);
}

/// Derivative of digamma(), polygamma(1).
LOCKSTEP_HD inline double trigamma(double x) {
  double y = 0, sign = 1;
  if (x < 0.5) {
    const double sine = std::sin(std::numbers::pi * (x - std::rint(x)));
    y = std::numbers::pi * std::numbers::pi / (sine * sine);
    x = 1 - x, sign = -1;
  }
  for (; x < stirling_from; ++x) y += sign / (x * x);
  const double s = 1 / (x * x);
  const double tail =
      s * (1. / 6 - s * (1. / 30 - s * (1. / 42 - s * (1. / 30 - s * (5. / 66 - s * (691. / 2730 - s * (7. / 6)))))));
  return y + sign * ((1 + 0.5 / x + tail) / x);
}

/// Derivative of trigamma(), polygamma(2).
LOCKSTEP_HD inline double tetragamma(double x) {
  double y = 0;
  if (x < 0.5) {
    const double angle = std::numbers::pi * (x - std::rint(x)), sine = std::sin(angle);
    y = -2 * std::numbers::pi * std::numbers::pi * std::numbers::pi * std::cos(angle) / (sine * sine * sine);
    x = 1 - x;
  }
  for (; x < stirling_from; ++x) y -= 2 / (x * x * x);
  const double s = 1 / (x * x);
  const double tail = s * (0.5 - s * (1. / 6 - s * (1. / 6 - s * (0.3 - s * (5. / 6 - s * (691. / 210 - s * 17.5))))));
  return y - s * (1 + 1 / x + tail);
}

}  // namespace lockstep::math
