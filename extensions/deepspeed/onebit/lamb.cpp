// OneBitLamb: LAMB for freeze_step steps, then compressed momenta and a slowly changing coefficient. See onebit.h.
#include "extensions/deepspeed/onebit/rules.h"
#include "extensions/optimizers/matrix_rules.h"

namespace lockstep::onebit {

std::vector<OptionRange> OneBitLambOptions::table() {
  return optim::adam_table(*this, {{"min_coeff", &min_coeff},
                                   {"max_coeff", &max_coeff, unchecked},
                                   {"freeze_step", &freeze_step, unchecked},
                                   {"coeff_beta", &coeff_beta, 0, 1},
                                   {"factor_min", &factor_min},
                                   {"factor_max", &factor_max, unchecked},
                                   {"factor_threshold", &factor_threshold}});
}
void OneBitLambOptions::check(const char* op) const {
  check_steps(op, "freeze_step", freeze_step, 1);
  LOCKSTEP_CHECK(max_coeff >= min_coeff, "[", op, "] expected max_coeff >= min_coeff, got ", max_coeff, " < ",
                 min_coeff);
  LOCKSTEP_CHECK(factor_max >= factor_min, "[", op, "] expected factor_max >= factor_min, got ", factor_max, " < ",
                 factor_min);
}

LOCKSTEP_ONEBIT_CONSTRUCTORS(OneBitLamb);

void OneBitLamb::update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
                        double grad_scale) {
  const OneBitLambOptions& o = options_[size_t(group)];
  const double coeff = optim::lamb_update({.lr = o.lr,
                                           .beta1 = o.beta1,
                                           .beta2 = o.beta2,
                                           .eps = o.eps,
                                           .weight_decay = o.weight_decay,
                                           .min_trust = o.min_coeff,
                                           .max_trust = o.max_coeff,
                                           .bias_correction = o.bias_correction},
                                          p, grad, state, low, grad_scale);
  if (coeff == 1) return;  // the norm of the parameter or of its update was 0
  state.numbers["coeff"] = o.coeff_beta * state.numbers["coeff"] + (1 - o.coeff_beta) * coeff;
  state.numbers["coeff_count"] += 1;
}

Tensor OneBitLamb::frozen_denominator(Slot& slot) const {
  const OneBitLambOptions& o = options_[size_t(slot.group)];
  return denominator(o, slot.tensor("exp_avg_sq"), int64_t(o.freeze_step));
}

/// Called before the first compressed step: computes the scaling coefficients and the mean LAMB coefficients. The
/// running second moment starts as a copy of the frozen one.
void OneBitLamb::freeze(std::vector<Slot>& all) {
  std::vector<double> sizes;
  double mean = 0;
  for (Slot& slot : all) {
    const double n = double(std::max<int64_t>(slot.parameter.numel(), 1));
    const OneBitLambOptions& o = options_[size_t(slot.group)];
    const Tensor sent = o.precondition ? div(slot.tensor("exp_avg"), frozen_denominator(slot)) : slot.tensor("exp_avg");
    sizes.push_back(slot.parameter.numel() == 0 ? 0 : norm(sent).item() / std::sqrt(n));
    mean += sizes.back() / double(all.size());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const OneBitLambOptions& o = options_[size_t(all[i].group)];
    auto& numbers = all[i].state->numbers;
    const double count = numbers["coeff_count"];
    numbers = {{"scaling_coeff", sizes[i] > 0 ? mean / sizes[i] : 1},
               {"last_factor", 1},
               {"coeff", count > 0 ? numbers["coeff"] / (1 - std::pow(o.coeff_beta, count)) : 1}};
    all[i].tensor("exp_avg_sq_fresh").copy_(all[i].tensor("exp_avg_sq"));
  }
}

void OneBitLamb::compressed_step(int64_t step, double grad_scale) {
  auto before = slots();
  for (Slot& slot : before) check_has_variance(slot);
  if (!before.empty() && !before[0].state->numbers.count("scaling_coeff")) freeze(before);
  std::vector<Tensor> last;
  auto all = slots([&](Slot& slot, const Tensor& grad) {
    const Tensor& m = slot.sent = slot.tensor("exp_avg");
    last.push_back(m.clone());
    const OneBitLambOptions& o = options_[size_t(slot.group)];
    add_to_momentum(m, o.beta1, grad, grad_scale);
    apply_masks(slot, m, true);
    if (o.precondition) divide_bounded(o, m, frozen_denominator(slot));
    mul_scalar_(m, slot.state->numbers.at("scaling_coeff"));
  });
  all_reduce(all, "momentum");
  for (size_t i = 0; i < all.size(); ++i) {
    Slot& slot = all[i];
    if (slot.parameter.numel() == 0) continue;
    const OneBitLambOptions& o = options_[size_t(slot.group)];
    auto& numbers = slot.state->numbers;
    const Tensor &m = slot.sent, &fresh = slot.tensor("exp_avg_sq_fresh");
    div_scalar_(m, numbers.at("scaling_coeff"));
    apply_masks(slot, m, true);
    const Tensor frozen = frozen_denominator(slot);
    const Tensor direction = o.precondition ? m.clone() : div(m, frozen);
    if (o.precondition) mul_(m, frozen);
    div_scalar_(direction, bias_correction(o.bias_correction, o.beta1, step));
    // Recovers the mean gradient from the change of the momentum.
    const Tensor gradient = div_scalar_(add_(mul_scalar_(last[i], -o.beta1), m, 1), 1 - o.beta1);
    add_(mul_scalar_(fresh, o.beta2), square(gradient), 1 - o.beta2);
    double factor = max(div(frozen, denominator(o, fresh, step))).item();
    if (o.weight_decay != 0) {  // the factor applies to the gradient's part only
      const double undecayed = norm(direction).item();
      add_(direction, slot.parameter, o.weight_decay);
      const double together = norm(direction).item(), part = together > 0 ? std::min(1., undecayed / together) : 1;
      factor = factor * part + (1 - part);
    }
    double& last_factor = numbers.at("last_factor");
    factor = std::clamp(factor, o.factor_min, o.factor_max);
    factor = std::clamp(factor, last_factor * (1 - o.factor_threshold), last_factor * (1 + o.factor_threshold));
    last_factor = factor;
    add_(slot.parameter, direction, -o.lr * numbers.at("coeff") * factor);
    changed(slot);
  }
}

}  // namespace lockstep::onebit
