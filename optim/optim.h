#pragma once
// The optimizers, with PyTorch's formulas and names of options. The options' table() lists the numeric ones with their
// ranges, for check_options() and for schedules. Give options by designated initialisers:
//   optim::AdamW opt(net.parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   opt.add_group(net.biases(), {.lr = 3e-4, .weight_decay = 0});
#include "optim/optimizer.h"

namespace lockstep::optim {

/// weight_decay is added to the gradient; dampening reduces the gradient's share in the momentum.
struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
  /// Error for nesterov without momentum or with dampening.
  void check(const char* op) const;
};
/// Stochastic gradient descent with momentum (Polyak, 1964) or Nesterov momentum.
class SGD : public OptimizerOf<SGDOptions> {
  LOCKSTEP_OPTIMIZER(SGD);
  bool is_one_kernel() const override { return true; }
};

/// beta1, beta2: decay of the moments; amsgrad: divide by the largest second moment so far (Reddi et al., 2018).
struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false, maximize = false, bias_correction = true;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam (Kingma and Ba, 2015) with L2 regularisation: the decay is added to the gradient.
class Adam : public OptimizerOf<AdamOptions> {
  LOCKSTEP_OPTIMIZER(Adam);
  bool is_one_kernel() const override { return true; }
};

/// The options of Adam, with another default of weight_decay.
struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  bool amsgrad = false, maximize = false, bias_correction = true;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
class AdamW : public OptimizerOf<AdamWOptions> {
  LOCKSTEP_OPTIMIZER(AdamW);
  bool is_one_kernel() const override { return true; }
};

}  // namespace lockstep::optim
