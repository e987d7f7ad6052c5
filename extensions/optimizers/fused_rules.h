#pragma once
// Update rules that are one kernel each: PyTorch's Adagrad and RMSprop, and Lion (Chen et al., 2023).
#include "extensions/optimizers/step_kernels.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

/// Step t has the rate lr / (1 + (t - 1) lr_decay).
struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator = 0, eps = 1e-10;
  bool maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};
/// Divides the gradient by the root of the sum of all squared gradients (Duchi et al., 2011).
class Adagrad : public OptimizerOf<AdagradOptions> {
  LOCKSTEP_OPTIMIZER(Adagrad);
  bool is_one_kernel() const override { return true; }
};

/// alpha: decay of the average of squares; centered: subtract the squared average of gradients.
struct RMSpropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};
/// Divides the gradient by the root of an average of squared gradients (Tieleman and Hinton, 2012).
class RMSprop : public OptimizerOf<RMSpropOptions> {
  LOCKSTEP_OPTIMIZER(RMSprop);
  bool is_one_kernel() const override { return true; }
};

/// beta1: weight of the momentum in a step's direction; beta2: decay of the momentum.
struct LionOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  bool maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return lion_table(*this); }
};
/// Steps by the sign of an interpolation of momentum and gradient, with decoupled weight decay.
class Lion : public OptimizerOf<LionOptions> {
  LOCKSTEP_OPTIMIZER(Lion);
  bool is_one_kernel() const override { return true; }
};

/// Kernel arguments of a Lion update.
template <class Options> LionArgs lion_args(const Options& o, double grad_scale) {
  return {.lr = o.lr,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .weight_decay = o.weight_decay,
          .maximize = o.maximize,
          .grad_scale = grad_scale};
}

/// One Lion update.
template <class Options>
void lion_update(const Options& o, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                 double grad_scale) {
  kernels::lion(p.device(), p, grad, state.zeros("exp_avg", p), low, lion_args(o, grad_scale));
}

}  // namespace lockstep::optim
