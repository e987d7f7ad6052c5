// Elementwise update rules of optimizers, composed of tensor operations. The update of an element depends only on its
// own gradient and state and on the step number. A rule therefore runs on any shard of a parameter and on any device.
#include "extensions/optimizers/composed_rules.h"

#include <algorithm>
#include <cmath>

#include "optim/rules.h"

namespace lockstep::optim {

Tensor signed_grad(const Tensor& grad, bool maximize, double grad_scale) {
  const double factor = maximize ? -grad_scale : grad_scale;
  return factor == 1 ? grad : mul_scalar(grad, factor);
}

namespace {

/// Returns the gradient with weight decay added. With `decoupled`, applies the decay to the parameter p right away
/// instead, and returns the gradient without it.
template <class Options>
Tensor decayed(const Options& o, Tensor& p, const Tensor& grad, double grad_scale, bool decoupled = false) {
  const Tensor g = signed_grad(grad, o.maximize, grad_scale);
  if (o.weight_decay == 0) return g;
  if (!decoupled) return add_(mul_scalar(p, o.weight_decay), g);
  mul_scalar_(p, 1 - o.lr * o.weight_decay);
  return g;
}

/// x += (towards - x) * part
void approach(Tensor& x, const Tensor& towards, double part) { add_(x, sub(towards, x), part); }

/// x = x * keep + (1 - keep) * g^2
Tensor& keep_square(Tensor& x, const Tensor& g, double keep) {
  add_(mul_scalar_(x, keep), square(g), 1 - keep);
  return x;
}

Tensor root(const Tensor& x, double bias, double eps) { return add_scalar_(sqrt_(div_scalar(x, bias)), eps); }

}  // namespace

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(NAdam);
void NAdam::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const NAdamOptions& o = options_[group];
  const auto momentum = [&](int64_t step) {
    return o.beta1 * (1 - 0.5 * std::pow(0.96, double(step) * o.momentum_decay));
  };
  double product = 1;  // product of the momenta up to this step
  for (int64_t step = 1; step <= state.step && product > 1e-20; ++step) product *= momentum(step);
  const double now = momentum(state.step), next = momentum(state.step + 1);
  const Tensor g = decayed(o, p, grad, grad_scale, o.decoupled_weight_decay);
  Tensor& m = state.zeros("exp_avg", p);
  approach(m, g, 1 - o.beta1);
  const Tensor& v = keep_square(state.zeros("exp_avg_sq", p), g, o.beta2);
  const Tensor below = root(v, bias_correction(true, o.beta2, state.step), o.eps);
  add_(p, div(g, below), -o.lr * (1 - now) / (1 - product));
  add_(p, div(m, below), -o.lr * next / (1 - product * next));
  round_into(low, p);
}

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(RAdam);
void RAdam::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const RAdamOptions& o = options_[group];
  const Tensor g = decayed(o, p, grad, grad_scale, o.decoupled_weight_decay);
  Tensor& m = state.zeros("exp_avg", p);
  approach(m, g, 1 - o.beta1);
  const Tensor& v = keep_square(state.zeros("exp_avg_sq", p), g, o.beta2);
  const double bias1 = bias_correction(true, o.beta1, state.step), bias2 = bias_correction(true, o.beta2, state.step);
  const double rho_inf = 2 / (1 - o.beta2) - 1, rho = rho_inf - 2 * double(state.step) * (1 - bias2) / bias2;
  if (rho > 5) {
    const double rectified = std::sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
    add_(p, div(m, root(v, 1, o.eps)), -o.lr / bias1 * rectified * std::sqrt(bias2));
  } else {
    add_(p, m, -o.lr / bias1);
  }
  round_into(low, p);
}

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Adamax);
void Adamax::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const AdamaxOptions& o = options_[group];
  const Tensor g = decayed(o, p, grad, grad_scale);
  Tensor &m = state.zeros("exp_avg", p), &largest = state.zeros("exp_inf", p);
  approach(m, g, 1 - o.beta1);
  maximum_(mul_scalar_(largest, o.beta2), add_scalar_(abs(g), o.eps));
  add_(p, div(m, largest), -o.lr / bias_correction(true, o.beta1, state.step));
  round_into(low, p);
}

std::vector<OptionRange> AdadeltaOptions::table() {
  return {{"lr", &lr}, {"rho", &rho, 0, std::nextafter(1, 2)}, {"eps", &eps}, {"weight_decay", &weight_decay}};
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Adadelta);
void Adadelta::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const AdadeltaOptions& o = options_[group];
  const Tensor g = decayed(o, p, grad, grad_scale);
  const Tensor& squares = keep_square(state.zeros("square_avg", p), g, o.rho);
  Tensor& steps = state.zeros("acc_delta", p);
  const Tensor step = mul(div(sqrt_(add_scalar(steps, o.eps)), sqrt_(add_scalar(squares, o.eps))), g);
  keep_square(steps, step, o.rho);
  add_(p, step, -o.lr);
  round_into(low, p);
}

std::vector<OptionRange> ASGDOptions::table() {
  return {{"lr", &lr},
          {"weight_decay", &weight_decay},
          {"lambd", &lambd},
          {"alpha", &alpha, unchecked},
          {"t0", &t0, unchecked}};
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(ASGD);
void ASGD::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const ASGDOptions& o = options_[group];
  const auto before = double(state.step - 1);
  const double rate = o.lr / std::pow(1 + o.lambd * o.lr * before, o.alpha);
  const Tensor g = decayed(o, p, grad, grad_scale);
  add_(mul_scalar_(p, 1 - o.lambd * rate), g, -rate);
  Tensor& average = state.zeros("ax", p);
  if (before - o.t0 > 1) approach(average, p, 1 / (before - o.t0));
  else average.copy_(p);
  round_into(low, p);
}

std::vector<OptionRange> RpropOptions::table() {
  return {{"lr", &lr},
          {"eta_minus", &eta_minus, std::nextafter(0, 1), 1},
          {"eta_plus", &eta_plus, std::nextafter(1, 2)},
          {"step_min", &step_min},
          {"step_max", &step_max, step_min}};
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Rprop);
void Rprop::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const RpropOptions& o = options_[group];
  const Tensor g = signed_grad(grad, o.maximize, grad_scale).clone(), none = zeros_like(g);
  const bool begins = state.is_new("step_size");
  Tensor &last = state.zeros("prev", p), &length = state.zeros("step_size", p);
  if (begins) length.fill_(o.lr);
  const Tensor agreement = mul(g, last), turned = lt(agreement, none), factor = ones_like(g);
  masked_fill_(factor, gt(agreement, none), o.eta_plus);
  masked_fill_(factor, turned, o.eta_minus);
  clamp_(mul_(length, factor), o.step_min, o.step_max);
  masked_fill_(g, turned, 0);
  sub_(p, mul(sign(g), length));
  last.copy_(g);
  round_into(low, p);
}

std::vector<OptionRange> SophiaOptions::table() {
  return lion_table(*this, {{"rho", &rho}, {"batch", &batch, 1}, {"hessian_interval", &hessian_interval}});
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Sophia);
void Sophia::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const SophiaOptions& o = options_[group];
  const Tensor g = decayed(o, p, grad, grad_scale, true);
  Tensor &m = state.zeros("exp_avg", p), &h = state.zeros("hessian", p);
  const auto interval = int64_t(o.hessian_interval);
  if (interval > 0 && (state.step - 1) % interval == 0) keep_square(h, g, o.beta2);
  approach(m, g, 1 - o.beta1);
  const Tensor curvature = add_scalar_(mul_scalar(h, o.rho * o.batch), 1e-15);
  add_(p, clamp_(div(m, curvature), -1, 1), -o.lr);
  round_into(low, p);
}
void Sophia::update_hessian() {
  const NoGrad no_grad;
  for (int group = 0; group < group_count(); ++group) {
    LOCKSTEP_CHECK(
        options_[group].hessian_interval == 0, "[Sophia] update_hessian() expected hessian_interval 0, got ",
        options_[group].hessian_interval,
        ": steps estimate the Hessian from their own gradients then; set it to 0, or do not call update_hessian()");
    for (Variable p : parameters(group)) {
      if (!p.requires_grad() || !p.grad().defined()) continue;
      const Prepared at = prepare(p);
      keep_square(at.state.zeros("hessian", at.parameter), at.grad, options_[group].beta2);
    }
  }
}

std::vector<OptionRange> AdamWScheduleFreeOptions::table() {
  auto all = adam_table(
      *this, {{"warmup_steps", &warmup_steps}, {"r", &r, unchecked}, {"weight_lr_power", &weight_lr_power, unchecked}});
  all[1].low = std::nextafter(0, 1);  // beta1 > 0, as update() divides by it
  return all;
}
/// Weight of the newest iterate in the average of all iterates: its weight / the sum of all weights up to this step.
double AdamWScheduleFree::newest_weight(int group, int64_t step) {
  const AdamWScheduleFreeOptions& o = options_[group];
  const auto weight = [&](int64_t k) {
    return std::pow(double(k), o.r) * std::pow(std::min(1.0, double(k) / o.warmup_steps), o.weight_lr_power);
  };
  auto& [done, sum] = sums_[group];
  if (done > step) done = 0, sum = 0;
  while (done < step) sum += weight(++done);
  return weight(step) / sum;
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(AdamWScheduleFree);
void AdamWScheduleFree::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                               double grad_scale) {
  const AdamWScheduleFreeOptions& o = options_[group];
  const double lr = o.lr * std::min(1.0, double(state.step) / o.warmup_steps);
  const double newest = newest_weight(group, state.step);
  const Tensor g = signed_grad(grad, o.maximize, grad_scale);
  const bool begins = state.is_new("z");
  Tensor &z = state.zeros("z", p), &average = state.zeros("ema", p);
  if (begins) z.copy_(p);
  const Tensor& v = keep_square(state.zeros("exp_avg_sq", p), g, o.beta2);
  const Tensor step = div(g, root(v, bias_correction(true, o.beta2, state.step), o.eps));
  if (o.weight_decay != 0) add_(step, p, o.weight_decay);
  approach(p, z, newest);
  add_(p, step, lr * (o.beta1 * (1 - newest) - 1));
  add_(z, step, -lr);
  average.copy_(p);
  approach(average, z, 1 - 1 / o.beta1);  // the parameter is the interpolation of z and the average
  round_into(low, p);
}

}  // namespace lockstep::optim
