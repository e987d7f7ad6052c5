// OneBitSGD: SGD with compressed gradients. See onebit.h.
#include "extensions/deepspeed/onebit/rules.h"

namespace lockstep::onebit {

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
