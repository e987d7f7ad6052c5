#pragma once
// Update rules that are one kernel each, with PyTorch's formulas.
#include "optim/optimizer.h"

namespace lockstep::optim {

/// Step t has the rate lr / (1 + (t - 1) lr_decay).
struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator = 0, eps = 1e-10;
  bool maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
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
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
};
/// Divides the gradient by the root of an average of squared gradients (Tieleman and Hinton, 2012).
class RMSprop : public OptimizerOf<RMSpropOptions> {
  LOCKSTEP_OPTIMIZER(RMSprop);
  bool is_one_kernel() const override { return true; }
};

}  // namespace lockstep::optim
