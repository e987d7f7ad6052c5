#pragma once
// The optimizers. Formulas are PyTorch's if PyTorch has the optimizer, else those of a paper: Lion (Chen et al., 2023),
// LAMB (You et al., 2020), Muon (Jordan et al., 2024), Sophia (Liu et al., 2023), schedule-free AdamW (Defazio et al.,
// 2024). Options have PyTorch's names. Their table() lists the numeric options with their ranges, for check_options()
// and for schedules. Give options by designated initialisers:
//   optim::AdamW opt(net.parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   opt.add_group(net.biases(), {.lr = 3e-4, .weight_decay = 0});
#include "optim/optimizer.h"

namespace lockstep::optim {

/// Declares the constructors (defined by LOCKSTEP_OPTIMIZER_CONSTRUCTORS) and overrides that every optimizer has.
/// Members that follow the macro are public.
#define LOCKSTEP_OPTIMIZER(Class)                                                                                      \
 public:                                                                                                               \
  Class(std::vector<Variable> parameters, const Class##Options& options);                                              \
  explicit Class(const std::vector<Group>& groups);                                                                    \
  const char* name() const override { return #Class; }                                                                 \
  void update(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) \
      override

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

// --- elementwise rules composed of tensor operations (composed_rules.cpp) ---

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
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
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
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
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
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
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
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
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
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
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

/// Adam with 8-bit moments (tensor/block_codes.h; Dettmers et al., 2022): 2.03 bytes per element instead of 8.
/// Parameters with fewer than min_8bit_size elements have f32 moments. Give f32 moments to embedding tables, too, as
/// most of their rows usually get no gradient: put them into a group with min_8bit_size = INT64_MAX.
struct Adam8bitOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t min_8bit_size = 4096;
  bool maximize = false, bias_correction = true;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
  /// Error unless min_8bit_size >= 0.
  void check(const char* op) const;
};
/// Adam with 8-bit moments.
class Adam8bit : public OptimizerOf<Adam8bitOptions> {
  LOCKSTEP_OPTIMIZER(Adam8bit);
  int64_t block() const override;
};

/// The options of Adam8bit, with another default of weight_decay.
struct AdamW8bitOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t min_8bit_size = 4096;
  bool maximize = false, bias_correction = true;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
  /// Error unless min_8bit_size >= 0.
  void check(const char* op) const;
};
/// AdamW with 8-bit moments; see Adam8bitOptions.
class AdamW8bit : public OptimizerOf<AdamW8bitOptions> {
  LOCKSTEP_OPTIMIZER(AdamW8bit);
  int64_t block() const override;
};

/// The options of Lion, and min_8bit_size as Adam8bitOptions explains it.
struct Lion8bitOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  int64_t min_8bit_size = 4096;
  bool maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return lion_table(*this); }
  /// Error unless min_8bit_size >= 0.
  void check(const char* op) const;
};
/// Lion with 8-bit momentum; see Adam8bitOptions.
class Lion8bit : public OptimizerOf<Lion8bitOptions> {
  LOCKSTEP_OPTIMIZER(Lion8bit);
  int64_t block() const override;
};

/// min_trust, max_trust: bounds of the trust ratio.
struct LAMBOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0, min_trust = 0.01, max_trust = 10;
  bool bias_correction = true, maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
  /// Error unless min_trust <= max_trust.
  void check(const char* op) const;
};
/// AdamW's direction, scaled for each parameter by the trust ratio |parameter| / |direction|.
class LAMB : public OptimizerOf<LAMBOptions> {
  LOCKSTEP_OPTIMIZER(LAMB);
  bool is_elementwise() const override { return false; }
};

/// Makes LAMB's update of one parameter. Returns the trust ratio.
double lamb_update(const LAMBOptions& o, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
                   double grad_scale);

/// newton_schulz_steps: iterations of the orthogonalisation.
struct MuonOptions {
  double lr = 1e-3, momentum = 0.95, weight_decay = 0.1, newton_schulz_steps = 5;
  bool nesterov = true, maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
};
/// Steps by the momentum, orthogonalised by a Newton-Schulz iteration. Error for parameters that are not matrices: give
/// those to AdamW.
class Muon : public OptimizerOf<MuonOptions> {
  LOCKSTEP_OPTIMIZER(Muon);
  bool is_elementwise() const override { return false; }
};

/// eps1: lower bound of the square root of the second moments; 0: the epsilon of f32 or f64. A step is limited to an
/// RMS of d, then multiplied by the parameter's RMS, or by eps2 if that is larger. beta2_decay: the averages of squared
/// gradients take the gradient of step t with weight t ^ beta2_decay.
struct AdafactorOptions {
  double lr = 1e-2, beta2_decay = -0.8, eps1 = 0, eps2 = 1e-3, d = 1, weight_decay = 0;
  bool maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table();
  /// Error unless beta2_decay <= 0 and d >= 1.
  void check(const char* op) const;
};
/// PyTorch's Adafactor (Shazeer and Stern, 2018): the second moments of an R x C matrix are approximated by the product
/// of row and column averages, R + C numbers.
class Adafactor : public OptimizerOf<AdafactorOptions> {
  LOCKSTEP_OPTIMIZER(Adafactor);
  bool is_elementwise() const override { return false; }
  Shape state_shape(const std::string& key, const Shape& parameter) const override;
};

#undef LOCKSTEP_OPTIMIZER

}  // namespace lockstep::optim
