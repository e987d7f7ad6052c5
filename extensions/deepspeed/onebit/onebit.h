#pragma once
// The 1-bit optimizers: after a warm-up they communicate one bit per element (onebit.md). Options are given by
// designated initialisers:
//
//   onebit::OneBitAdam opt(model.parameters(), {.lr = 3e-4, .freeze_step = 1000});
//   opt.add_group(more, {.lr = 3e-4, .weight_decay = 0, .freeze_step = 1000});       // the same groups on all ranks
//
// Steps count from 1. Weight decay is decoupled, as in AdamW, except in OneBitSGD.
#include "extensions/deepspeed/onebit/optimizer.h"
#include "optim/optim.h"

namespace lockstep::onebit {

/// Declares the constructors and overridden methods of a 1-bit optimizer. Constructors are collective over `group`
/// (null: dist::world()).
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

/// Options of OneBitAdam.
struct OneBitAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double freeze_step = 100000;  ///< number of exact steps; after them the second moment is frozen
  /// true: apply Adam's bias correction. After the freeze, the correction of the second moment is frozen too. false:
  /// apply none, as in DeepSpeed.
  bool bias_correction = true;
  /// true: send the bounded quotient m / (sqrt(v) + eps), whose elements have similar magnitudes. false: send m, as in
  /// the paper; this works only if no element of v is tiny.
  bool precondition = true;
  std::vector<optim::OptionRange> table();                      ///< names and ranges of the options
  void check(const char* op) const;                             ///< Error for options out of range
  static constexpr CompressedAllReduce::Options compression{};  ///< how momenta are compressed
};
/// 1-bit Adam (Tang et al., arXiv:2102.02888). The first freeze_step steps are AdamW with the mean gradient. Then each
/// rank adds its own gradient to the momentum m, and the momenta are averaged with one bit per element: p -= lr (m /
/// (sqrt(v) + eps) + weight_decay p).
class OneBitAdam : public optim::OptimizerOf<OneBitAdamOptions, OneBitOptimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(OneBitAdam);
};

/// Options of OneBitLamb.
struct OneBitLambOptions {
  /// min_coeff and max_coeff bound LAMB's coefficient (trust ratio).
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, min_coeff = 0.01, max_coeff = 10;
  double freeze_step = 100000;              ///< number of exact steps
  double coeff_beta = 0.9;                  ///< decay of the running mean of LAMB's coefficient in exact steps
  double factor_min = 0.5, factor_max = 4;  ///< bounds of the factor by which the frozen coefficient is multiplied
  double factor_threshold = 0.1;            ///< relative change of the factor allowed in one step
  bool bias_correction = true;              ///< see OneBitAdamOptions::bias_correction
  bool precondition = true;                 ///< see OneBitAdamOptions::precondition
  std::vector<optim::OptionRange> table();  ///< names and ranges of the options
  void check(const char* op) const;         ///< Error for options out of range
  // One scale per chunk is enough: the scaling coefficients bring all tensors to the same magnitude.
  static constexpr CompressedAllReduce::Options compression{.scale_per_tensor = false};
};
/// 1-bit LAMB (Li et al., arXiv:2104.06069). The first freeze_step steps are LAMB's. Then momenta are averaged with one
/// bit per element; scaling coefficients bring all tensors to the same magnitude. LAMB's coefficient is replaced by its
/// mean at the freeze times a factor. The factor measures how far the current second moment, estimated from changes of
/// the momentum, has fallen below the frozen second moment.
class OneBitLamb : public optim::OptimizerOf<OneBitLambOptions, OneBitOptimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(OneBitLamb);

 private:
  Tensor frozen_denominator(Slot& slot) const;
  void freeze(std::vector<Slot>& slots);
};

/// Options of ZeroOneAdam.
struct ZeroOneAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  /// Last step that may change the second moment. Up to this step ranks exchange gradients; then local steps begin.
  double var_freeze_step = 100000;
  /// Number of changes of the second moment after which the interval between two changes doubles.
  double var_update_scaler = 16;
  double local_step_scaler = 32678;         ///< steps after which the number of local steps between exchanges doubles
  double local_step_clipper = 16;           ///< upper bound of the number of local steps between exchanges
  bool bias_correction = true;              ///< see OneBitAdamOptions::bias_correction
  bool precondition = true;                 ///< see OneBitAdamOptions::precondition; applies to gradients too
  std::vector<optim::OptionRange> table();  ///< names and ranges of the options
  void check(const char* op) const;         ///< Error for options out of range
  static constexpr CompressedAllReduce::Options compression{};  ///< how momenta are compressed
};
/// 0/1 Adam (Lu et al., arXiv:2202.06009): 1-bit Adam without an exact warm-up phase, and without any communication in
/// most steps.
class ZeroOneAdam : public optim::OptimizerOf<ZeroOneAdamOptions, OneBitOptimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(ZeroOneAdam);

 public:
  bool is_synchronized() const override { return local_steps_ == 0; }
  void synchronize() override;
  /// Error unless is_synchronized().
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

  // Intervals between changes of the second moment and between exchanges, and counters. load_state() recomputes them.
  int64_t variance_interval_ = 1, variance_count_ = 0, variance_updates_ = 0, local_interval_ = 1, local_count_ = 0;
  int64_t local_steps_ = 0;    // local steps since the ranks last exchanged
  std::vector<double> rates_;  // for each group, the learning rates summed over these local steps
};

/// Options of OneBitSGD.
struct OneBitSGDOptions {
  double lr = 1e-3, momentum = 0.9, dampening = 0, weight_decay = 0;
  double freeze_step = 0;  ///< number of exact steps before compression starts
  bool nesterov = false;
  std::vector<optim::OptionRange> table();  ///< names and ranges of the options
  void check(const char* op) const;         ///< Error for options out of range
  static constexpr CompressedAllReduce::Options compression{.scale = Scale::magnitude};  ///< how momenta are compressed
};
/// 1-bit SGD (Seide et al., 2014; with the scale of EF-SGD, arXiv:1901.09847): SGD whose gradients are averaged with
/// one bit per element.
class OneBitSGD : public optim::OptimizerOf<OneBitSGDOptions, OneBitOptimizer> {
  LOCKSTEP_ONEBIT_OPTIMIZER(OneBitSGD);
};

#undef LOCKSTEP_ONEBIT_OPTIMIZER

}  // namespace lockstep::onebit
