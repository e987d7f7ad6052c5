// ZeroOneAdam. p: parameter, m: momentum, v: second moment, U: sum of (learning rate) m since the last exchange.
//
//   step                      kind       communication            update
//   up to var_freeze_step
//     at growing intervals    exact      mean gradient            AdamW; only these steps change v
//     all others              gradient   gradients, 1 bit each    AdamW with v constant
//   after var_freeze_step
//     every step              local      none                     p moves by this rank's own m
//     every local_interval_   exchange   U, 1 bit each            from the p of the last exchange, common to all ranks:
//                                                                 p -= U / (sqrt(v) + eps),  m = U / Σ learning rate
#include "extensions/deepspeed/onebit/rules.h"

namespace lockstep::onebit {

std::vector<OptionRange> ZeroOneAdamOptions::table() {
  return optim::adam_table(*this, {{"var_freeze_step", &var_freeze_step, unchecked},
                                   {"var_update_scaler", &var_update_scaler, unchecked},
                                   {"local_step_scaler", &local_step_scaler, unchecked},
                                   {"local_step_clipper", &local_step_clipper, unchecked}});
}
void ZeroOneAdamOptions::check(const char* op) const {
  check_steps(op, "var_freeze_step", var_freeze_step, 1);
  check_steps(op, "var_update_scaler", var_update_scaler, 1);
  check_steps(op, "local_step_scaler", local_step_scaler, 1);
  check_steps(op, "local_step_clipper", local_step_clipper, 1);
}

bool ZeroOneAdam::is_exact(int64_t step) const {
  return step <= common("var_freeze_step") && step % variance_interval_ == 0;
}

/// sqrt(v) + eps. v changes only in exact steps, so its bias correction counts only exact steps.
Tensor ZeroOneAdam::denominator_of(Slot& slot) const {
  return denominator(options_[size_t(slot.group)], slot.tensor("exp_avg_sq"), variance_updates_);
}

LOCKSTEP_ONEBIT_CONSTRUCTORS(ZeroOneAdam);

void ZeroOneAdam::update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
                         double grad_scale) {
  optim::adam_update(options_[size_t(group)], true, p, grad, state, low, grad_scale, variance_updates_);
}

void ZeroOneAdam::exact_step(int64_t step, double grad_scale) {
  ++variance_updates_;
  OneBitOptimizer::exact_step(step, grad_scale);
  advance(step);
}

void ZeroOneAdam::compressed_step(int64_t step, double grad_scale) {
  const int64_t last = common("var_freeze_step");
  if (step == last + 1) reset_errors();  // errors of gradients must not be added to sums of momenta
  if (step <= last) gradient_step(step, grad_scale);
  else local_step(step, grad_scale);
  advance(step);
}

/// Called after a step. Doubles the interval between exact steps, or between exchanges, if that is due.
void ZeroOneAdam::advance(int64_t step) {
  if (step <= common("var_freeze_step")) {
    if (step % variance_interval_ != 0 || ++variance_count_ < common("var_update_scaler")) return;
    variance_count_ = 0;
    variance_interval_ = std::min<int64_t>(variance_interval_ * 2, int64_t(1) << 60);
  } else if (++local_count_ == common("local_step_scaler")) {
    local_count_ = 0;
    local_interval_ = std::min(local_interval_ * 2, common("local_step_clipper"));
  }
}

void ZeroOneAdam::gradient_step(int64_t step, double grad_scale) {
  auto all = slots([&](Slot& slot, const Tensor& grad) {
    check_has_variance(slot);
    slot.sent = grad_scale == 1 ? grad : mul_scalar_(grad, grad_scale);
    apply_masks(slot, grad, false);
    const ZeroOneAdamOptions& o = options_[size_t(slot.group)];
    if (o.precondition) divide_bounded(o, grad, denominator_of(slot), 1 / (1 - o.beta1));
  });
  all_reduce(all, "gradients");
  for (Slot& slot : all) {
    const ZeroOneAdamOptions& o = options_[size_t(slot.group)];
    const Tensor m = slot.tensor("exp_avg"), below = denominator_of(slot);
    apply_masks(slot, slot.sent, false);
    if (o.precondition) mul_(slot.sent, below);
    add_to_momentum(m, o.beta1, slot.sent, 1);
    if (o.weight_decay != 0) mul_scalar_(slot.parameter, 1 - o.lr * o.weight_decay);
    add_(slot.parameter, div(m, below), -o.lr / bias_correction(o.bias_correction, o.beta1, step));
    changed(slot);
  }
}

/// Error if a parameter was written to since the last exchange: the next exchange would lose the change, because it
/// starts from the parameters of the last exchange.
void ZeroOneAdam::check_unwritten() {
  if (local_steps_ == 0) return;
  for (const Slot& slot : slots()) {
    const Storage& storage = *slot.variable.tensor().storage();
    LOCKSTEP_CHECK(slot.state->known_version == storage.version(), "[", name(), "] a parameter of shape ",
                   slot.variable.shape(), " was changed by '", storage.last_writer(),
                   "' between two exchanges; the next exchange would overwrite the change: call synchronize() first");
  }
}

void ZeroOneAdam::local_step(int64_t step, double grad_scale) {
  rates_.resize(options_.size());
  check_unwritten();
  slots([&](Slot& slot, const Tensor& grad) {
    check_has_variance(slot);
    const ZeroOneAdamOptions& o = options_[size_t(slot.group)];
    const double rate = o.lr / bias_correction(o.bias_correction, o.beta1, step), keep = 1 - o.lr * o.weight_decay;
    const Tensor m = slot.tensor("exp_avg"), start = slot.tensor("start");
    if (local_steps_ == 0) start.copy_(slot.parameter);
    if (o.weight_decay != 0) mul_scalar_(slot.parameter, keep), mul_scalar_(start, keep);
    add_to_momentum(m, o.beta1, grad, grad_scale);
    apply_masks(slot, m, true);
    const Tensor below = denominator_of(slot), direction = m.clone();
    if (o.precondition) {
      divide_bounded(o, direction, below);
      m.copy_(mul(direction, below));
    } else {
      div_(direction, below);
    }
    add_(slot.tensor("momentum_sum"), m, rate);
    add_(slot.parameter, direction, -rate);
    changed(slot);
  });
  for (size_t g = 0; g < options_.size(); ++g)
    rates_[g] += options_[g].lr / bias_correction(options_[g].bias_correction, options_[g].beta1, step);
  if (++local_steps_ >= local_interval_) exchange();
}

void ZeroOneAdam::exchange() {
  auto all = slots();
  for (Slot& slot : all) {
    slot.sent = slot.tensor("momentum_sum");
    if (options_[size_t(slot.group)].precondition) div_(slot.sent, denominator_of(slot));
  }
  // If all learning rates were 0 nothing has moved, and nothing is exchanged.
  if (std::any_of(rates_.begin(), rates_.end(), [](double rate) { return rate > 0; })) all_reduce(all, "momentum");
  for (Slot& slot : all) {
    const double rate = rates_[size_t(slot.group)];
    if (rate > 0) {
      const bool divided = options_[size_t(slot.group)].precondition;
      const Tensor below = denominator_of(slot);
      apply_masks(slot, slot.sent, true);
      slot.tensor("exp_avg").copy_(div_scalar(divided ? mul(slot.sent, below) : slot.sent, rate));
      slot.parameter.copy_(sub(slot.tensor("start"), divided ? slot.sent : div(slot.sent, below)));
    } else {
      slot.parameter.copy_(slot.tensor("start"));
    }
    changed(slot);
    slot.state->tensors.erase("momentum_sum");
    slot.state->tensors.erase("start");
  }
  std::fill(rates_.begin(), rates_.end(), 0.);
  local_steps_ = 0;
}

void ZeroOneAdam::synchronize() {
  const NoGrad no_grad;
  check_unwritten();
  if (local_steps_ > 0) exchange();
}

optim::OptimizerState ZeroOneAdam::state() const {
  LOCKSTEP_CHECK(is_synchronized(), "[ZeroOneAdam] the ranks are ", local_steps_,
                 " local steps apart: call synchronize() on all of them before the state is saved");
  return OneBitOptimizer::state();
}

void ZeroOneAdam::load_state(const optim::OptimizerState& saved) {
  OneBitOptimizer::load_state(saved);
  variance_interval_ = local_interval_ = 1;
  variance_count_ = variance_updates_ = local_count_ = local_steps_ = 0;
  rates_.clear();
  for (int64_t step = 1; step <= steps(); ++step) {
    if (is_exact(step)) ++variance_updates_;
    advance(step);
  }
}

}  // namespace lockstep::onebit
