#pragma once
// Building blocks of the optimizers' update rules.
#include <cmath>

#include "optim/optimizer.h"
#include "optim/step_kernels.h"
#include "tensor/ops.h"

namespace lockstep::optim {

/// Defines the constructors that LOCKSTEP_OPTIMIZER declares. They are not in a header, so that a program does not
/// compile the constructors of every optimizer.
#define LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Class)                                                \
  Class::Class(std::vector<::lockstep::Variable> parameters, const Class##Options& options) { \
    add_group(std::move(parameters), options);                                                \
  }                                                                                           \
  Class::Class(const std::vector<Group>& groups) { add_groups(groups); }

/// 1 - beta^step, or 1 without bias correction.
inline double bias_correction(bool wanted, double beta, int64_t step) {
  return wanted ? 1 - std::pow(beta, double(step)) : 1;
}

/// Kernel arguments of an Adam update.
template <class Options>
AdamArgs adam_args(const Options& o, bool decoupled, int64_t step, int64_t updates, double grad_scale) {
  AdamArgs args{.lr = o.lr,
                .beta1 = o.beta1,
                .beta2 = o.beta2,
                .eps = o.eps,
                .weight_decay = o.weight_decay,
                .decoupled = decoupled,
                .bias1 = bias_correction(o.bias_correction, o.beta1, step),
                .bias2 = bias_correction(o.bias_correction, o.beta2, updates),
                .grad_scale = grad_scale,
                .corrects = o.bias_correction};
  if constexpr (requires { o.maximize; }) args.maximize = o.maximize;
  return args;
}

/// One Adam update of p. updates: number of updates of the second moment, this one included. decoupled: true for
/// AdamW's weight decay.
template <class Options>
void adam_update(const Options& o, bool decoupled, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                 double grad_scale, int64_t updates) {
  Tensor& m = state.zeros("exp_avg", p);
  Tensor& v = state.zeros("exp_avg_sq", p);
  Tensor v_max;
  const AdamArgs args = adam_args(o, decoupled, state.step, updates, grad_scale);
  if constexpr (requires { o.amsgrad; })  // only some Options have amsgrad
    if (o.amsgrad) v_max = state.zeros("max_exp_avg_sq", p);
  kernels::adam(p.device(), p, grad, m, v, v_max, low, args);
}

/// Copies p, rounded, into the 16-bit parameter `low` if there is one. Fused kernels do this themselves.
inline void round_into(Tensor& low, const Tensor& p) {
  if (low.defined()) low.copy_(p);
}

/// One SGD update.
template <class Options>
void sgd_update(const Options& o, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                double grad_scale) {
  SgdArgs args{.lr = o.lr,
               .momentum = o.momentum,
               .dampening = o.dampening,
               .weight_decay = o.weight_decay,
               .nesterov = o.nesterov,
               .first = state.is_new("momentum_buffer"),
               .grad_scale = grad_scale};
  if constexpr (requires { o.maximize; }) args.maximize = o.maximize;
  Tensor momentum;
  if (o.momentum != 0) momentum = state.zeros("momentum_buffer", p);
  kernels::sgd(p.device(), p, grad, momentum, low, args);
}

/// Throws an Error if nesterov is set without momentum or with dampening.
template <class Options> void check_nesterov(const char* op, const Options& o) {
  LOCKSTEP_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0), "[", op,
                 "] nesterov needs momentum > 0 and dampening 0 (else leave it out), got ", o.momentum, " and ",
                 o.dampening);
}

}  // namespace lockstep::optim
