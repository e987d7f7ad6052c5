#pragma once
// What the rules of parallel/onebit/ share. Internal.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "optim/checks.h"
#include "parallel/onebit/onebit.h"
#include "tensor/ops.h"

namespace lockstep::onebit {

using optim::check_adam, optim::check_range;

inline void check_steps(const char* op, const char* option, double value, double least) {
  LOCKSTEP_CHECK(value >= least && value <= 0x1p53 && value == std::floor(value), "[", op,
                 "] expected a whole number >= ", least, " for ", option, ", got ", value);
}

/// An option that counts steps for the whole optimizer. Error when groups differ.
template <class Options>
int64_t common(const char* op, const std::vector<Options>& groups, const char* option, double Options::*value) {
  for (const Options& o : groups) {
    LOCKSTEP_CHECK(o.*value == groups[0].*value, "[", op, "] expected the same ", option, " in every group, got ",
                   groups[0].*value, " and ", o.*value);
  }
  return int64_t(groups[0].*value);
}

inline double correction(bool wanted, double beta, int64_t step) {
  return wanted ? 1 - std::pow(beta, double(step)) : 1;
}

/// AdamW on one parameter, whose second moment changes for the `updates`-th time.
template <class Options>
void adamw(const Options& o, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
           double grad_scale, int64_t updates) {
  Tensor& m = state.zeros("exp_avg", p);
  Tensor& v = state.zeros("exp_avg_sq", p);
  Tensor no_maximum;
  LOCKSTEP_KERNEL(p.device(), adam)
  (p, grad, m, v, no_maximum, low,
   {.lr = o.lr,
    .beta1 = o.beta1,
    .beta2 = o.beta2,
    .eps = o.eps,
    .weight_decay = o.weight_decay,
    .decoupled = true,
    .bias1 = correction(o.bias_correction, o.beta1, state.step),
    .bias2 = correction(o.bias_correction, o.beta2, updates),
    .grad_scale = grad_scale});
}

/// m = beta1 m + (1 - beta1) scale g
inline void add_to_momentum(const Tensor& m, double beta1, const Tensor& grad, double scale) {
  add_(mul_scalar_(m, beta1), grad, (1 - beta1) * scale);
}

/// sqrt(v / correction) + eps
inline Tensor denominator(const Tensor& v, double correction, double eps) {
  return add_scalar_(correction == 1 ? sqrt(v) : sqrt_(mul_scalar(v, 1 / correction)), eps);
}

/// m / below, in place, and no more of it than a lone gradient makes of Adam's quotient when v follows: a frozen v does
/// not, and where it is tiny a later gradient of ordinary size would be a step of any size, on one rank as on many.
template <class Options>
void divide_bounded(const Options& o, const Tensor& m, const Tensor& below, double factor = 1) {
  const double most = factor * std::max(1., (1 - o.beta1) / std::sqrt(1 - o.beta2));
  clamp_(div_(m, below), -most, most);
}

}  // namespace lockstep::onebit
