// OneBitAdam: AdamW until the freeze, then compressed momenta. OneBitSGD: SGD with compressed gradients. See onebit.h.
#include "extensions/deepspeed/onebit/rules.h"

namespace lockstep::onebit {

std::vector<OptionRange> OneBitAdamOptions::table() {
  return optim::adam_table(*this, {{"freeze_step", &freeze_step, unchecked}});
}
void OneBitAdamOptions::check(const char* op) const { check_steps(op, "freeze_step", freeze_step, 1); }

LOCKSTEP_ONEBIT_CONSTRUCTORS(OneBitAdam);

void OneBitAdam::update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
                        double grad_scale) {
  optim::adam_update(options_[size_t(group)], true, p, grad, state, low, grad_scale, state.step);
}

void OneBitAdam::compressed_step(int64_t step, double grad_scale) {
  const auto denominator_of = [&](Slot& slot) {
    const OneBitAdamOptions& o = options_[size_t(slot.group)];
    return denominator(o, slot.tensor("exp_avg_sq"), int64_t(o.freeze_step));
  };
  auto all = slots([&](Slot& slot, const Tensor& grad) {
    check_has_variance(slot);
    const OneBitAdamOptions& o = options_[size_t(slot.group)];
    const Tensor& m = slot.sent = slot.tensor("exp_avg");
    add_to_momentum(m, o.beta1, grad, grad_scale);
    apply_masks(slot, m, true);
    if (o.precondition) divide_bounded(o, m, denominator_of(slot));
  });
  all_reduce(all, "momentum");
  for (Slot& slot : all) {
    const OneBitAdamOptions& o = options_[size_t(slot.group)];
    const Tensor &m = slot.sent, below = denominator_of(slot);
    apply_masks(slot, m, true);
    const Tensor direction = o.precondition ? m : div(m, below);
    if (o.weight_decay != 0) mul_scalar_(slot.parameter, 1 - o.lr * o.weight_decay);
    add_(slot.parameter, direction, -o.lr / bias_correction(o.bias_correction, o.beta1, step));
    if (o.precondition) mul_(m, below);
    changed(slot);
  }
}

std::vector<OptionRange> OneBitSGDOptions::table() {
  return {{"lr", &lr},
          {"momentum", &momentum, 0, 1},
          {"dampening", &dampening, 0, 1},
          {"weight_decay", &weight_decay},
          {"freeze_step", &freeze_step, unchecked}};
}
void OneBitSGDOptions::check(const char* op) const {
  check_steps(op, "freeze_step", freeze_step, 0);
  optim::check_nesterov(op, *this);
}

LOCKSTEP_ONEBIT_CONSTRUCTORS(OneBitSGD);

void OneBitSGD::update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
                       double grad_scale) {
  optim::sgd_update(options_[size_t(group)], p, grad, state, low, grad_scale);
}

void OneBitSGD::compressed_step(int64_t, double grad_scale) {
  auto all = slots(
      [&](Slot& slot, const Tensor& grad) { slot.sent = grad_scale == 1 ? grad : mul_scalar_(grad, grad_scale); });
  all_reduce(all, "gradients");
  for (Slot& slot : all) {
    apply_masks(slot, slot.sent, true);
    update_exactly(slot, slot.sent, 1);
  }
}

}  // namespace lockstep::onebit
