// The optimizers whose update rule is one fused kernel each: SGD, Adam, AdamW, Adagrad, RMSprop, Lion.
#include <cmath>

#include "optim/optim.h"
#include "optim/rules.h"

namespace lockstep::optim {

std::vector<OptionRange> SGDOptions::table() {
  return {{"lr", &lr}, {"momentum", &momentum}, {"dampening", &dampening, unchecked}, {"weight_decay", &weight_decay}};
}
void SGDOptions::check(const char* op) const { check_nesterov(op, *this); }
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(SGD);
void SGD::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  sgd_update(options_[group], p, grad, state, low, grad_scale);
}

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Adam);
void Adam::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  adam_update(options_[group], false, p, grad, state, low, grad_scale, state.step);
}

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(AdamW);
void AdamW::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  adam_update(options_[group], true, p, grad, state, low, grad_scale, state.step);
}

std::vector<OptionRange> AdagradOptions::table() {
  return {{"lr", &lr},
          {"lr_decay", &lr_decay},
          {"weight_decay", &weight_decay},
          {"initial_accumulator", &initial_accumulator},
          {"eps", &eps}};
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Adagrad);
void Adagrad::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const AdagradOptions& o = options_[group];
  const bool first = state.is_new("sum");
  Tensor& sum = state.zeros("sum", p);
  if (first && o.initial_accumulator != 0) sum.fill_(o.initial_accumulator);
  kernels::adagrad(p.device(), p, grad, sum, low,
                   {.lr = o.lr / (1 + double(state.step - 1) * o.lr_decay),
                    .eps = o.eps,
                    .weight_decay = o.weight_decay,
                    .maximize = o.maximize,
                    .grad_scale = grad_scale,
                    .first_lr = o.lr,
                    .lr_decay = o.lr_decay});
}

std::vector<OptionRange> RMSpropOptions::table() {
  return {{"lr", &lr}, {"alpha", &alpha}, {"eps", &eps}, {"weight_decay", &weight_decay}, {"momentum", &momentum}};
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(RMSprop);
void RMSprop::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const RMSpropOptions& o = options_[group];
  Tensor& square = state.zeros("square_avg", p);
  Tensor average, momentum;
  if (o.centered) average = state.zeros("grad_avg", p);
  if (o.momentum > 0) momentum = state.zeros("momentum_buffer", p);
  kernels::rmsprop(p.device(), p, grad, square, average, momentum, low,
                   {.lr = o.lr,
                    .alpha = o.alpha,
                    .eps = o.eps,
                    .weight_decay = o.weight_decay,
                    .momentum = o.momentum,
                    .centered = o.centered,
                    .maximize = o.maximize,
                    .grad_scale = grad_scale});
}

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Lion);
void Lion::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  lion_update(options_[group], p, grad, state, low, grad_scale);
}

}  // namespace lockstep::optim
