#pragma once
// Checks of options that rules share, here and in onebit/. Internal.
#include <cmath>

#include "tensor/check.h"

namespace lockstep::optim {

/// Checks that name's `value` is in [low, high).
inline void check_range(const char* op, const char* option, double value, double low, double high = INFINITY) {
  LOCKSTEP_CHECK(value >= low && value < high, "[", op, "] expected ", option, " in [", low, ", ", high, "), got ",
                 value);
}

template <class Options> void check_adam(const char* op, const Options& o) {
  check_range(op, "lr", o.lr, 0);
  check_range(op, "beta1", o.beta1, 0, 1);
  check_range(op, "beta2", o.beta2, 0, 1);
  check_range(op, "eps", o.eps, 0);
  check_range(op, "weight_decay", o.weight_decay, 0);
}

}  // namespace lockstep::optim
