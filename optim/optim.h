#pragma once
// The optimizers. Formulas are PyTorch's where it has the optimizer, the papers' for Lion (Chen et al., 2023), LAMB
// (You et al., 2020), Muon (Jordan et al., 2024), Sophia (Liu et al., 2023) and schedule-free AdamW (Defazio et al.,
// 2024). Options are designated initialisers:
//   optim::AdamW opt(net.parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   opt.add_group(net.biases(), {.lr = 3e-4, .weight_decay = 0});
#include "optim/optimizer.h"

namespace lockstep::optim {

/// Declares the two constructors (LOCKSTEP_OPTIMIZER_CONSTRUCTORS defines them) and the overrides that every optimizer
/// has; what follows is public.
#define LOCKSTEP_OPTIMIZER(Class)                                                                                      \
 public:                                                                                                               \
  Class(std::vector<Variable> parameters, const Class##Options& options);                                              \
  explicit Class(const std::vector<Group>& groups);                                                                    \
  const char* name() const override { return #Class; }                                                                 \
  void update(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) \
      override

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  std::vector<OptionRange> table();
  void check(const char* op) const;
};
class SGD : public OptimizerOf<SGDOptions> {
  LOCKSTEP_OPTIMIZER(SGD);
  bool is_one_kernel() const override { return true; }
};

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false, maximize = false, bias_correction = true;
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam with L2 decay (added to the gradient).
class Adam : public OptimizerOf<AdamOptions> {
  LOCKSTEP_OPTIMIZER(Adam);
  bool is_one_kernel() const override { return true; }
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  bool amsgrad = false, maximize = false, bias_correction = true;
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam with decoupled decay (Loshchilov and Hutter, 2019).
class AdamW : public OptimizerOf<AdamWOptions> {
  LOCKSTEP_OPTIMIZER(AdamW);
  bool is_one_kernel() const override { return true; }
};

struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator = 0, eps = 1e-10;
  bool maximize = false;
  std::vector<OptionRange> table();
};
class Adagrad : public OptimizerOf<AdagradOptions> {
  LOCKSTEP_OPTIMIZER(Adagrad);
  bool is_one_kernel() const override { return true; }
};

struct RMSpropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;
  std::vector<OptionRange> table();
};
class RMSprop : public OptimizerOf<RMSpropOptions> {
  LOCKSTEP_OPTIMIZER(RMSprop);
  bool is_one_kernel() const override { return true; }
};

struct LionOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  bool maximize = false;
  std::vector<OptionRange> table() { return lion_table(*this); }
};
class Lion : public OptimizerOf<LionOptions> {
  LOCKSTEP_OPTIMIZER(Lion);
  bool is_one_kernel() const override { return true; }
};

// --- made of tensor operations, element by element (composed_rules.cpp) ---

struct NAdamOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool decoupled_weight_decay = false, maximize = false;
  std::vector<OptionRange> table() { return adam_table(*this, {{"momentum_decay", &momentum_decay}}); }
};
/// Adam with Nesterov's momentum (Dozat, 2016).
class NAdam : public OptimizerOf<NAdamOptions> {
  LOCKSTEP_OPTIMIZER(NAdam);
};

struct RAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled_weight_decay = false, maximize = false;
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam whose first steps, of few gradients, are rectified (Liu et al., 2019).
class RAdam : public OptimizerOf<RAdamOptions> {
  LOCKSTEP_OPTIMIZER(RAdam);
};

struct AdamaxOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false;
  std::vector<OptionRange> table() { return adam_table(*this); }
};
/// Adam with the largest gradient in place of the second moment (Kingma and Ba, 2015).
class Adamax : public OptimizerOf<AdamaxOptions> {
  LOCKSTEP_OPTIMIZER(Adamax);
};

struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false;
  std::vector<OptionRange> table();
};
/// Steps as long as those before them (Zeiler, 2012).
class Adadelta : public OptimizerOf<AdadeltaOptions> {
  LOCKSTEP_OPTIMIZER(Adadelta);
};

struct ASGDOptions {
  double lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0;
  bool maximize = false;
  std::vector<OptionRange> table();
};
/// SGD with a falling rate, and the average of the parameters from step t0 on in the state, as "ax" (Polyak and
/// Juditsky, 1992).
class ASGD : public OptimizerOf<ASGDOptions> {
  LOCKSTEP_OPTIMIZER(ASGD);
};

struct RpropOptions {
  double lr = 1e-2, eta_minus = 0.5, eta_plus = 1.2, step_min = 1e-6, step_max = 50;
  bool maximize = false;
  std::vector<OptionRange> table();
};
/// By the sign of the gradient of a whole data set (Riedmiller and Braun, 1993); lr is the length of the first step.
class Rprop : public OptimizerOf<RpropOptions> {
  LOCKSTEP_OPTIMIZER(Rprop);
};

/// batch: samples (of a language model, tokens) that a gradient is the mean of. hessian_interval: every so many steps
/// the diagonal of the Hessian is estimated from the step's own gradient (the paper's empirical Fisher); 0: only by
/// update_hessian().
struct SophiaOptions {
  double lr = 1e-4, beta1 = 0.965, beta2 = 0.99, rho = 0.04, weight_decay = 0.1, batch = 5120, hessian_interval = 10;
  bool maximize = false;
  std::vector<OptionRange> table();
};
/// Sophia-G: momentum over the diagonal of the Hessian, clipped.
class Sophia : public OptimizerOf<SophiaOptions> {
  LOCKSTEP_OPTIMIZER(Sophia);
  /// The Gauss-Newton-Bartlett estimate, from gradients of a loss whose targets were drawn from the model's output.
  /// Error unless hessian_interval is 0.
  void update_hessian();
};

struct AdamWScheduleFreeOptions {
  double lr = 2.5e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, warmup_steps = 0, r = 0,
         weight_lr_power = 2;
  bool maximize = false;
  std::vector<OptionRange> table();
};
/// AdamW at a constant rate, whose average of all steps ("ema" in the state) is the model to evaluate and to keep.
class AdamWScheduleFree : public OptimizerOf<AdamWScheduleFreeOptions> {
  LOCKSTEP_OPTIMIZER(AdamWScheduleFree);
  bool keeps_average() const override { return true; }

 private:
  double newest_weight(int group, int64_t step);
  std::map<int, std::pair<int64_t, double>> sums_;  // of the weights up to a step, by group
};

/// Moments in 8 bits (tensor/block_codes.h): 2.03 bytes an element in place of 8. Smaller parameters have f32 state.
/// Tables of tokens should have it, too, as most rows have no gradient most of the time: a group with min_8bit_size =
/// INT64_MAX.
struct Adam8bitOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t min_8bit_size = 4096;
  bool maximize = false, bias_correction = true;
  std::vector<OptionRange> table() { return adam_table(*this); }
  void check(const char* op) const;
};
class Adam8bit : public OptimizerOf<Adam8bitOptions> {
  LOCKSTEP_OPTIMIZER(Adam8bit);
  int64_t block() const override;
};

struct AdamW8bitOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t min_8bit_size = 4096;
  bool maximize = false, bias_correction = true;
  std::vector<OptionRange> table() { return adam_table(*this); }
  void check(const char* op) const;
};
class AdamW8bit : public OptimizerOf<AdamW8bitOptions> {
  LOCKSTEP_OPTIMIZER(AdamW8bit);
  int64_t block() const override;
};

struct Lion8bitOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  int64_t min_8bit_size = 4096;
  bool maximize = false;
  std::vector<OptionRange> table() { return lion_table(*this); }
  void check(const char* op) const;
};
class Lion8bit : public OptimizerOf<Lion8bitOptions> {
  LOCKSTEP_OPTIMIZER(Lion8bit);
  int64_t block() const override;
};

struct LAMBOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0, min_trust = 0.01, max_trust = 10;
  bool bias_correction = true, maximize = false;
  std::vector<OptionRange> table();
  void check(const char* op) const;
};
class LAMB : public OptimizerOf<LAMBOptions> {
  LOCKSTEP_OPTIMIZER(LAMB);
  bool is_elementwise() const override { return false; }
};

/// LAMB's rule on one parameter; gives back its trust ratio.
double lamb_update(const LAMBOptions& o, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
                   double grad_scale);

struct MuonOptions {
  double lr = 1e-3, momentum = 0.95, weight_decay = 0.1, newton_schulz_steps = 5;
  bool nesterov = true, maximize = false;
  std::vector<OptionRange> table();
};
/// Momentum orthogonalised by Newton-Schulz. Matrices only (Error otherwise): give the rest to AdamW.
class Muon : public OptimizerOf<MuonOptions> {
  LOCKSTEP_OPTIMIZER(Muon);
  bool is_elementwise() const override { return false; }
};

/// eps1: of squares; 0 takes the parameter's precision. d: the largest root mean square of a step, in steps of rate.
struct AdafactorOptions {
  double lr = 1e-2, beta2_decay = -0.8, eps1 = 0, eps2 = 1e-3, d = 1, weight_decay = 0;
  bool maximize = false;
  std::vector<OptionRange> table();
  void check(const char* op) const;
};
/// PyTorch's Adafactor (Shazeer and Stern, 2018): second moments of a matrix are those of its rows times its columns,
/// R + C numbers for R C elements.
class Adafactor : public OptimizerOf<AdafactorOptions> {
  LOCKSTEP_OPTIMIZER(Adafactor);
  bool is_elementwise() const override { return false; }
  Shape state_shape(const std::string& key, const Shape& parameter) const override;
};

#undef LOCKSTEP_OPTIMIZER

}  // namespace lockstep::optim
