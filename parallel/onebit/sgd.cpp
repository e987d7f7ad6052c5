// OneBitSGD.
#include "parallel/onebit/rules.h"

namespace lockstep::onebit {

std::map<std::string, double*> OneBitSGDOptions::by_name() {
  return {{"lr", &lr},
          {"momentum", &momentum},
          {"dampening", &dampening},
          {"weight_decay", &weight_decay},
          {"freeze_step", &freeze_step}};
}
void OneBitSGDOptions::check(const char* op) const {
  check_range(op, "lr", lr, 0);
  check_range(op, "momentum", momentum, 0, 1);
  check_range(op, "dampening", dampening, 0, 1);
  check_range(op, "weight_decay", weight_decay, 0);
  check_steps(op, "freeze_step", freeze_step, 0);
  LOCKSTEP_CHECK(!nesterov || (momentum > 0 && dampening == 0), "[", op,
                 "] nesterov needs momentum > 0 and dampening 0, got ", momentum, " and ", dampening);
}

bool OneBitSGD::is_exact(int64_t step) const {
  return step <= common(name(), options_, "freeze_step", &OneBitSGDOptions::freeze_step);
}

void OneBitSGD::update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
                       double grad_scale) {
  const OneBitSGDOptions& o = options_[size_t(group)];
  const bool first = state.tensors.count("momentum_buffer") == 0;
  Tensor momentum;
  if (o.momentum != 0) momentum = state.zeros("momentum_buffer", p);
  LOCKSTEP_KERNEL(p.device(), sgd)
  (p, grad, momentum, low,
   {.lr = o.lr,
    .momentum = o.momentum,
    .dampening = o.dampening,
    .weight_decay = o.weight_decay,
    .nesterov = o.nesterov,
    .first = first,
    .grad_scale = grad_scale});
}

void OneBitSGD::compressed_step(int64_t, double grad_scale) {
  std::vector<Tensor> grads;
  auto all = slots(
      [&](Slot&, const Tensor& grad) { grads.push_back(grad_scale == 1 ? grad : mul_scalar_(grad, grad_scale)); });
  all_reduce(grads, "gradients");
  for (size_t i = 0; i < all.size(); ++i) {
    Slot& slot = all[i];
    apply_masks(slot, grads[i], true);
    update(slot.group, slot.parameter, grads[i], *slot.state, slot.low, 1);
    slot.low = {};  // update() has done it
    changed(slot);
  }
}

}  // namespace lockstep::onebit
