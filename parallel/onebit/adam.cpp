// OneBitAdam.
#include "parallel/onebit/rules.h"

namespace lockstep::onebit {

std::map<std::string, double*> OneBitAdamOptions::by_name() {
  return {{"lr", &lr},
          {"beta1", &beta1},
          {"beta2", &beta2},
          {"eps", &eps},
          {"weight_decay", &weight_decay},
          {"freeze_step", &freeze_step}};
}
void OneBitAdamOptions::check(const char* op) const {
  check_adam(op, *this);
  check_steps(op, "freeze_step", freeze_step, 1);
}

bool OneBitAdam::is_exact(int64_t step) const {
  return step <= common(name(), options_, "freeze_step", &OneBitAdamOptions::freeze_step);
}

void OneBitAdam::update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
                        double grad_scale) {
  adamw(options_[size_t(group)], p, grad, state, low, grad_scale, state.step);
}

void OneBitAdam::compressed_step(int64_t step, double grad_scale) {
  const auto denominator_of = [&](Slot& slot) {
    const OneBitAdamOptions& o = options_[size_t(slot.group)];
    return denominator(slot.tensor("exp_avg_sq"), correction(o.bias_correction, o.beta2, int64_t(o.freeze_step)),
                       o.eps);
  };
  std::vector<Tensor> momenta;
  auto all = slots([&](Slot& slot, const Tensor& grad) {
    check_has_variance(slot);
    const OneBitAdamOptions& o = options_[size_t(slot.group)];
    const Tensor& m = momenta.emplace_back(slot.tensor("exp_avg"));
    add_to_momentum(m, o.beta1, grad, grad_scale);
    apply_masks(slot, m, true);
    if (o.precondition) divide_bounded(o, m, denominator_of(slot));
  });
  all_reduce(momenta, "momentum");
  for (size_t i = 0; i < all.size(); ++i) {
    Slot& slot = all[i];
    const OneBitAdamOptions& o = options_[size_t(slot.group)];
    const Tensor &m = momenta[i], below = denominator_of(slot);
    apply_masks(slot, m, true);
    const Tensor direction = o.precondition ? m : div(m, below);
    if (o.weight_decay != 0) mul_scalar_(slot.parameter, 1 - o.lr * o.weight_decay);
    add_(slot.parameter, direction, -o.lr / correction(o.bias_correction, o.beta1, step));
    if (o.precondition) mul_(m, below);
    changed(slot);
  }
}

}  // namespace lockstep::onebit
