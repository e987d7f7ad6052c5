#pragma once
// The 1-bit optimizers: what they exchange after a warm-up is one bit a number (docs/onebit.md). Options are designated
// initialisers:
//   onebit::OneBitAdam opt(model.parameters(), {.lr = 3e-4, .freeze_step = 1000});
//   opt.add_group(more, {.lr = 3e-4, .weight_decay = 0, .freeze_step = 1000});       // on all ranks, of the same ones
// Steps count from 1, and the first is a step like the others. Weight decay is decoupled (AdamW's), except in
// OneBitSGD.
#include "optim/optim.h"
#include "parallel/onebit/optimizer.h"

namespace lockstep::onebit {

/// Declares the constructors, which are collective, and the overrides of all. `group`: default dist::world().
#define LOCKSTEP_ONEBIT_OPTIMIZER(Class)                                                                       \
 public:                                                                                                       \
  Class(std::vector<Variable> parameters, const Class##Options& options, dist::ProcessGroup* group = nullptr); \
  explicit Class(const std::vector<Group>& groups, dist::ProcessGroup* group = nullptr);                       \
  const char* name() const override { return #Class; }                                                         \
  void update(int group, Tensor& parameter, const Tensor& grad, optim::ParameterState& state, Tensor& low,     \
              double grad_scale) override;                                                                     \
                                                                                                               \
 protected:                                                                                                    \
  void compressed_step(int64_t step, double grad_scale) override

struct OneBitAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double freeze_step = 100000;  ///< exact steps; the second moment stays as it is from then on
  /// Adam's, and after the freeze that of the second moment stays too; false: none at all, as in DeepSpeed.
  bool bias_correction = true;
  /// Bound and send m / (sqrt(v) + eps), of one size everywhere; false: m itself, as in the paper: needs a v that is
  /// nowhere tiny.
  bool precondition = true;
  std::vector<optim::OptionRange> table();
  void check(const char* op) const;
  static constexpr CompressedAllReduce::Options compression{};
};
/// 1-bit Adam (Tang et al., arXiv:2102.02888). The first freeze_step steps are AdamW with the mean gradient. Then each
/// rank adds its own gradient to the momentum, and the momenta are averaged with a bit a number; p -= lr (m / (sqrt(v)
/// + eps) + weight_decay p).
class OneBitAdam : public optim::OptimizerOf<OneBitAdamOptions, Optimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(OneBitAdam);
};

struct OneBitLambOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, min_coeff = 0.01, max_coeff = 10;
  double freeze_step = 100000;
  double coeff_beta = 0.9;                  ///< of the running mean of LAMB's coefficient during the exact steps
  double factor_min = 0.5, factor_max = 4;  ///< of the factor on its frozen value
  double factor_threshold = 0.1;            ///< by how much of itself the factor may change in a step
  bool bias_correction = true;
  bool precondition = true;  ///< as OneBitAdam's
  std::vector<optim::OptionRange> table();
  void check(const char* op) const;
  // A scale for all: that is what scaling coefficients are for.
  static constexpr CompressedAllReduce::Options compression{.scale_per_tensor = false};
};
/// 1-bit LAMB (Li et al., arXiv:2104.06069). Exact steps are LAMB's. Then momenta are averaged with a bit a number,
/// each multiplied by a scaling coefficient that makes them alike, and LAMB's coefficient is its frozen mean times a
/// factor: how much the second moment, followed from the change of the momentum, has fallen below the frozen one.
class OneBitLamb : public optim::OptimizerOf<OneBitLambOptions, Optimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(OneBitLamb);

 private:
  Tensor frozen_denominator(Slot& slot) const;
  void freeze(std::vector<Slot>& slots);
};

struct ZeroOneAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  /// The last step that may change the second moment; gradients travel until then, local steps begin after.
  double var_freeze_step = 100000;
  double var_update_scaler = 16;  ///< after so many changes of the second moment, the steps from one to the next double
  double local_step_scaler = 32678;  ///< after so many steps, the local steps from one exchange to the next double
  double local_step_clipper = 16;    ///< to that many at most
  bool bias_correction = true;
  bool precondition = true;  ///< as OneBitAdam's, for gradients too
  std::vector<optim::OptionRange> table();
  void check(const char* op) const;
  static constexpr CompressedAllReduce::Options compression{};
};
/// 0/1 Adam (Lu et al., arXiv:2202.06009): 1-bit Adam without an exact warm-up, and without any exchange in most steps.
class ZeroOneAdam : public optim::OptimizerOf<ZeroOneAdamOptions, Optimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(ZeroOneAdam);

 public:
  bool is_synchronized() const override { return local_steps_ == 0; }
  void synchronize() override;
  /// Error when the ranks are apart.
  optim::OptimizerState state() const override;
  void load_state(const optim::OptimizerState& state) override;

 private:
  bool is_exact(int64_t step) const override;
  void exact_step(int64_t step, double grad_scale) override;
  Tensor denominator_of(Slot& slot) const;
  void gradient_step(int64_t step, double grad_scale);
  void local_step(int64_t step, double grad_scale);
  void check_unwritten();
  void exchange();
  void advance(int64_t step);

  // Steps from one exchange to the next, of the second moment and of parameters: functions of the number of steps.
  int64_t variance_interval_ = 1, variance_count_ = 0, variance_updates_ = 0, local_interval_ = 1, local_count_ = 0;
  int64_t local_steps_ = 0;    // since parameters were the same on all ranks
  std::vector<double> rates_;  // of each group: learning rates summed over them
};

struct OneBitSGDOptions {
  double lr = 1e-3, momentum = 0.9, dampening = 0, weight_decay = 0;
  double freeze_step = 0;  ///< exact steps before compression starts
  bool nesterov = false;
  std::vector<optim::OptionRange> table();
  void check(const char* op) const;
  static constexpr CompressedAllReduce::Options compression{.scale = Scale::magnitude};
};
/// 1-bit SGD (Seide et al., 2014; with the scale of EF-SGD, arXiv:1901.09847): gradients are averaged with a bit a
/// number, the rest is SGD's.
class OneBitSGD : public optim::OptimizerOf<OneBitSGDOptions, Optimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(OneBitSGD);
};

#undef LOCKSTEP_ONEBIT_OPTIMIZER

}  // namespace lockstep::onebit
