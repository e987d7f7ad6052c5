// LAMB scales the step of a whole parameter by a ratio of norms.
#include <algorithm>

#include "optim/optim.h"
#include "optim/rules.h"

namespace lockstep::optim {

std::vector<OptionRange> LAMBOptions::table() {
  return adam_table(*this, {{"min_trust", &min_trust}, {"max_trust", &max_trust, unchecked}});
}
void LAMBOptions::check(const char* op) const {
  LOCKSTEP_CHECK(max_trust >= min_trust, "[", op, "] expected max_trust >= min_trust, got ", max_trust, " < ",
                 min_trust);
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(LAMB);
void LAMB::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  lamb_update(options_[group], p, grad, state, low, grad_scale);
}

double lamb_update(const LAMBOptions& o, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                   double grad_scale) {
  const Tensor g = signed_grad(grad, o.maximize, grad_scale);
  Tensor& m = state.zeros("exp_avg", p);
  Tensor& v = state.zeros("exp_avg_sq", p);
  add_(mul_scalar_(m, o.beta1), g, 1 - o.beta1);
  add_(mul_scalar_(v, o.beta2), square(g), 1 - o.beta2);
  const double bias1 = bias_correction(o.bias_correction, o.beta1, state.step),
               bias2 = bias_correction(o.bias_correction, o.beta2, state.step);
  const Tensor direction = div(div_scalar(m, bias1), add_scalar_(sqrt_(div_scalar(v, bias2)), o.eps));
  if (o.weight_decay != 0) add_(direction, p, o.weight_decay);
  const double size = norm(p).item(), step = norm(direction).item();
  const double trust = size > 0 && step > 0 ? std::clamp(size / step, o.min_trust, o.max_trust) : 1;
  add_(p, direction, -o.lr * trust);
  round_into(low, p);
  return trust;
}

}  // namespace lockstep::optim
