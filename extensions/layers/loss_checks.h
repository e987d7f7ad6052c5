#pragma once
// Checks that the losses of this extension share.
#include <cmath>
#include <initializer_list>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/loss_common.h"

namespace lockstep {

/// Error unless all parts are floating and have the first part's shape and dtype. Under Autocast dtypes may differ.
inline void check_alike(const char* op, std::initializer_list<std::pair<const char*, const Variable&>> parts) {
  const auto& [name, first] = *parts.begin();
  for (const auto& [other, x] : parts) {
    LOCKSTEP_CHECK(x.shape() == first.shape(), "[", op, "] expected ", name, " and ", other, " of one shape, got ",
                   first.shape(), " and ", x.shape(), "; reshape one of them");
    LOCKSTEP_CHECK(is_floating(x.dtype()), "[", op, "] expected floating ", other, ", got ", x.dtype(),
                   "; convert with .to(dtype)");
    LOCKSTEP_CHECK(x.dtype() == first.dtype() || Autocast::enabled(), "[", op, "] expected ", name, " and ", other,
                   " of one dtype, got ", first.dtype(), " and ", x.dtype(), "; convert with .to(dtype)");
  }
}

/// Error unless margin is finite and in [low, high].
inline void check_margin(const char* op, double margin, double low, double high) {
  LOCKSTEP_CHECK(margin >= low && margin <= high && std::isfinite(margin), "[", op, "] expected a finite margin in [",
                 low, ", ", high, "], got ", margin);
}

/// Error unless `weight` is undefined or broadcasts to `shape`.
inline void check_broadcasts(const char* op, const Tensor& weight, const Shape& shape) {
  LOCKSTEP_CHECK(!weight.defined() || broadcast_shapes(op, weight.shape(), shape) == shape, "[", op,
                 "] expected a weight that broadcasts to ", shape, ", got ", weight.shape(), "; reshape the weight");
}

/// True where low <= x <= high.
inline Tensor within(const Tensor& x, double low, double high) {
  return logical_and(ge(x, constant(low, x)), le(x, constant(high, x)));
}

}  // namespace lockstep
