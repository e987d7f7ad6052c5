#pragma once
// What losses share: checks, and the end of each. Internal to autograd/.
#include <cmath>
#include <initializer_list>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/ops.h"

namespace lockstep {

/// Error unless all are floating, and have the shape and the dtype of the first.
inline void check_alike(const char* op, std::initializer_list<std::pair<const char*, const Variable&>> parts) {
  const auto& [name, first] = *parts.begin();
  for (const auto& [other, x] : parts) {
    LOCKSTEP_CHECK(x.shape() == first.shape(), "[", op, "] expected ", name, " and ", other, " of one shape, got ",
                   first.shape(), " and ", x.shape());
    LOCKSTEP_CHECK(is_floating(x.dtype()), "[", op, "] expected floating ", other, ", got ", x.dtype(),
                   "; convert with .to(dtype)");
    LOCKSTEP_CHECK(x.dtype() == first.dtype() || Autocast::enabled(), "[", op, "] expected ", name, " and ", other,
                   " of one dtype, got ", first.dtype(), " and ", x.dtype(), "; convert with .to(dtype)");
  }
}

inline void check_margin(const char* op, double margin, double low, double high) {
  LOCKSTEP_CHECK(margin >= low && margin <= high && std::isfinite(margin), "[", op, "] expected a margin in [", low,
                 ", ", high, "], got ", margin);
}

inline void check_broadcasts(const char* op, const Tensor& weight, const Shape& shape) {
  LOCKSTEP_CHECK(!weight.defined() || broadcast_shapes(op, weight.shape(), shape) == shape, "[", op,
                 "] expected a weight that broadcasts to ", shape, ", got ", weight.shape());
}

/// Error that names the first value that is not good, where the values lie on the CPU.
inline void check_values(const char* op, const char* expected, const Tensor& values, const Tensor& good) {
  if (!values.device().is_cpu() || values.numel() == 0 || all(good).item<bool>()) return;
  const auto is_good = good.to(i64).to_vector<int64_t>();
  size_t at = 0;
  while (is_good[at]) ++at;
  fail(str("[", op, "] expected ", expected, ", got ", values.to_vector<double>()[at], " at element ", at));
}

inline Tensor constant(Scalar value, const Tensor& like) { return full({}, value, {like.dtype(), like.device()}); }

inline Tensor within(const Tensor& x, double low, double high) {
  return logical_and(ge(x, constant(low, x)), le(x, constant(high, x)));
}

/// What cross entropy's mean divides by, a scalar like `out`: the number of targets that count, or the sum of their
/// weights. On a device it is made there, so that nobody waits for it.
Tensor divisor_of(const Tensor& index, const Tensor& weight, const CrossEntropyArgs& args, const Tensor& out);

inline Shape without_last(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

inline Variable finish(const Wide& wide, const Variable& losses, Reduction reduction) {
  if (reduction == Reduction::none) return wide.round(losses);
  return wide.round(reduction == Reduction::mean ? mean(losses) : sum(losses));
}

/// x^p of x >= 0, p > 0; zeros get no gradient, whatever p is.
inline Variable power(const Variable& x, double p) {
  const Tensor zero = eq(x.tensor(), constant(0, x.tensor()));
  return masked_fill(pow_scalar(masked_fill(x, zero, 1), p), zero, 0);
}

}  // namespace lockstep
