#pragma once
// Elementwise update rules that are composed of tensor operations. Formulas are PyTorch's if PyTorch has the optimizer,
// else those of a paper: Sophia (Liu et al., 2023), schedule-free AdamW (Defazio et al., 2024).
#include "optim/optimizer.h"

namespace lockstep::optim {

/// Returns the gradient times grad_scale, negated if `maximize` is true.
Tensor signed_grad(const Tensor& grad, bool maximize, double grad_scale);

/// momentum_decay: decay of the momentum schedule. decoupled_weight_decay: true for AdamW's weight decay.
struct NAdamOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool decoupled_weight_decay = false, maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this, {{"momentum_decay", &momentum_decay}}); }
};
/// Adam with Nesterov momentum (Dozat, 2016).
class NAdam : public OptimizerOf<NAdamOptions> {
  LOCKSTEP_OPTIMIZER(NAdam);
};

/// decoupled_weight_decay: true decays the parameters themselves, as AdamW does; false adds the decay to the gradient.
struct RAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled_weight_decay = false, maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam whose first steps are rectified, because few gradients estimate their variance badly (Liu et al., 2019).
class RAdam : public OptimizerOf<RAdamOptions> {
  LOCKSTEP_OPTIMIZER(RAdam);
};

/// The options of Adam, with another default of lr.
struct AdamaxOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam with an infinity norm of past gradients in place of the second moment (Kingma and Ba, 2015).
class Adamax : public OptimizerOf<AdamaxOptions> {
  LOCKSTEP_OPTIMIZER(Adamax);
};

/// rho: decay of the averages of squared gradients and of squared updates.
struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};
/// Scales steps by the ratio of the RMS of past updates to that of past gradients (Zeiler, 2012).
class Adadelta : public OptimizerOf<AdadeltaOptions> {
  LOCKSTEP_OPTIMIZER(Adadelta);
};

/// Step t has the rate lr / (1 + lambd lr (t - 1)) ^ alpha. lambd also decays parameters: p -= rate lambd p. t0: the
/// step after which averaging begins.
struct ASGDOptions {
  double lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0;
  bool maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};
/// SGD with a decaying rate. From step t0 on the average of the parameters is kept in the state, as "ax" (Polyak and
/// Juditsky, 1992).
class ASGD : public OptimizerOf<ASGDOptions> {
  LOCKSTEP_OPTIMIZER(ASGD);
};

/// eta_minus, eta_plus: factors on the step size; step_min, step_max: its bounds. lr is the first step size.
struct RpropOptions {
  double lr = 1e-2, eta_minus = 0.5, eta_plus = 1.2, step_min = 1e-6, step_max = 50;
  bool maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};
/// Uses only the sign of the gradient; for full-batch training (Riedmiller and Braun, 1993).
class Rprop : public OptimizerOf<RpropOptions> {
  LOCKSTEP_OPTIMIZER(Rprop);
};

/// batch: number of samples (for a language model, tokens) that a gradient averages over. hessian_interval: the
/// diagonal of the Hessian is estimated every so many steps, from the step's own gradient (the paper's empirical
/// Fisher); 0: only by update_hessian().
struct SophiaOptions {
  double lr = 1e-4, beta1 = 0.965, beta2 = 0.99, rho = 0.04, weight_decay = 0.1, batch = 5120, hessian_interval = 10;
  bool maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};
/// Sophia-G: momentum divided by the diagonal of the Hessian, clipped elementwise to [-1, 1].
class Sophia : public OptimizerOf<SophiaOptions> {
  LOCKSTEP_OPTIMIZER(Sophia);
  /// Updates the Hessian with the Gauss-Newton-Bartlett estimate, from the current gradients, which must be gradients
  /// of a loss whose targets were sampled from the model's output. Error unless hessian_interval is 0.
  void update_hessian();
};

/// warmup_steps: steps in which the rate rises linearly to lr. In the average, the iterate of step k has the weight
/// k ^ r * min(1, k / warmup_steps) ^ weight_lr_power.
struct AdamWScheduleFreeOptions {
  double lr = 2.5e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, warmup_steps = 0, r = 0,
         weight_lr_power = 2;
  bool maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};
/// AdamW at a constant rate, with a weighted average of its iterates. The average ("ema" in the state) is the model to
/// evaluate and to keep.
class AdamWScheduleFree : public OptimizerOf<AdamWScheduleFreeOptions> {
  LOCKSTEP_OPTIMIZER(AdamWScheduleFree);
  bool keeps_average() const override { return true; }

 private:
  double newest_weight(int group, int64_t step);
  // For each group: the last step that newest_weight() was called for, and the sum of all weights up to that step.
  std::map<int, std::pair<int64_t, double>> sums_;
};

}  // namespace lockstep::optim
