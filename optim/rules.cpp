// SGD, Adam and AdamW, whose update rule is one fused kernel each.

#include "optim/rules.h"
#include "optim/optim.h"

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

}  // namespace lockstep::optim
