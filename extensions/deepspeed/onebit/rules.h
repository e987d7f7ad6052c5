#pragma once
// Formulas and macros shared by the 1-bit optimizers. Internal.
#include <algorithm>
#include <cmath>

#include "extensions/deepspeed/onebit/onebit.h"
#include "optim/rules.h"

namespace lockstep::onebit {

/// Defines the constructors of a class; a counterpart of LOCKSTEP_OPTIMIZER_CONSTRUCTORS.
#define LOCKSTEP_ONEBIT_CONSTRUCTORS(Class)                                                                \
  Class::Class(std::vector<Variable> parameters, const Class##Options& options, dist::ProcessGroup* group) \
      : Class(std::vector<Group>{{std::move(parameters), options}}, group) {}                              \
  Class::Class(const std::vector<Group>& groups, dist::ProcessGroup* group)                                \
      : OptimizerOf(group, Class##Options::compression) {                                                  \
    for (const Group& g : groups) add_group(g.parameters, g.options);                                      \
    start();                                                                                               \
  }

using optim::unchecked, optim::bias_correction, optim::OptionRange;

/// Error unless `value` is a whole number in [least, 2^53].
inline void check_steps(const char* op, const char* option, double value, double least) {
  LOCKSTEP_CHECK(value >= least && value <= 0x1p53 && value == std::floor(value), "[", op,
                 "] expected a whole number from ", least, " to 2^53 for ", option, ", got ", value);
}

/// m = beta1 m + (1 - beta1) scale grad
inline void add_to_momentum(const Tensor& m, double beta1, const Tensor& grad, double scale) {
  add_(mul_scalar_(m, beta1), grad, (1 - beta1) * scale);
}

/// sqrt(v / correction) + eps for a second moment v that has changed `updates` times.
template <class Options> Tensor denominator(const Options& o, const Tensor& v, int64_t updates) {
  const double correction = bias_correction(o.bias_correction, o.beta2, updates);
  return add_scalar_(correction == 1 ? sqrt(v) : sqrt_(div_scalar(v, correction)), o.eps);
}

/// Divides m by `below` in place, and clamps the quotient to `factor` times the largest quotient possible in
/// Adam. In Adam the second moment v grows with the gradient. A frozen v does not grow: where it is tiny, even an
/// ordinary gradient would cause a huge step.
template <class Options>
void divide_bounded(const Options& o, const Tensor& m, const Tensor& below, double factor = 1) {
  const double greatest = factor * std::max(1., (1 - o.beta1) / std::sqrt(1 - o.beta2));
  clamp_(div_(m, below), -greatest, greatest);
}

}  // namespace lockstep::onebit
