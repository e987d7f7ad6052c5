#pragma once
// Update rules that need the whole parameter, not a shard: LAMB (You et al., 2020), Muon (Jordan et al., 2024) and
// PyTorch's Adafactor.
#include <string>

#include "optim/optimizer.h"

namespace lockstep::optim {

/// min_trust, max_trust: bounds of the trust ratio.
struct LAMBOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0, min_trust = 0.01, max_trust = 10;
  bool bias_correction = true, maximize = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
  void check(const char* op) const;  ///< Error unless min_trust <= max_trust
};
/// AdamW's direction, scaled for each parameter by the trust ratio |parameter| / |direction|.
class LAMB : public OptimizerOf<LAMBOptions> {
  LOCKSTEP_OPTIMIZER(LAMB);
  bool is_elementwise() const override { return false; }
};

/// Makes LAMB's update of one parameter. Returns the trust ratio.
double lamb_update(const LAMBOptions& o, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
                   double grad_scale);

/// newton_schulz_steps: iterations of the orthogonalisation. adjust_lr_fn: the factor of the rate of an R x C matrix;
/// names are PyTorch's. "original": sqrt(max(1, R / C)) (Jordan et al., 2024). "match_rms_adamw": 0.2 sqrt(max(R, C)),
/// with which AdamW's lr and weight_decay serve, because steps are about as large as its own (Liu et al., 2025).
struct MuonOptions {
  double lr = 1e-3, momentum = 0.95, weight_decay = 0.1, newton_schulz_steps = 5;
  bool nesterov = true, maximize = false;
  std::string adjust_lr_fn = "original";
  std::vector<OptionRange> table();  ///< names and ranges of the options
  void check(const char* op) const;  ///< Error for another adjust_lr_fn
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
  /// Hugging Face's options. false: steps are not multiplied by the parameter's RMS; lr is not limited to 1 / sqrt(t).
  bool scale_parameter = true, relative_step = true;
  std::vector<OptionRange> table();  ///< names and ranges of the options
  void check(const char* op) const;  ///< Error unless beta2_decay <= 0 and d >= 1
};
/// PyTorch's Adafactor (Shazeer and Stern, 2018): the second moments of an R x C matrix are approximated by the product
/// of row and column averages, R + C numbers.
class Adafactor : public OptimizerOf<AdafactorOptions> {
  LOCKSTEP_OPTIMIZER(Adafactor);
  bool is_elementwise() const override { return false; }
  Shape state_shape(const std::string& key, const Shape& parameter) const override;
};

}  // namespace lockstep::optim
