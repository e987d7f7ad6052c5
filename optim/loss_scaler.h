#pragma once
// Loss scaling for f16: multiply the loss so that small gradients survive 16 bits, divide before the step, and skip
// steps whose gradients overflowed. Two state machines: PyTorch's GradScaler and DeepSpeed's DynamicLossScaler.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

/// torch.amp.GradScaler:
///   scaler.scale(loss).backward(); scaler.unscale(opt); clip_grad_norm(...); scaler.step(opt); scaler.update();
class GradScaler {
 public:
  struct Options {
    double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
    int64_t growth_interval = 2000;
    bool enabled = true;
  };
  explicit GradScaler(const Options& options);
  GradScaler() : GradScaler(Options{}) {}

  Variable scale(const Variable& loss) const;
  /// Divides the optimizer's gradients by the scale, and notes overflow. Error when done twice before update().
  void unscale(Optimizer& optimizer);
  /// unscale() if it was not called, then optimizer.step() unless one of its gradients is NaN or infinite. True when it
  /// stepped.
  bool step(Optimizer& optimizer);
  void update();
  /// The same after a step that was made, or skipped, elsewhere (zero::Zero).
  void update(bool found_overflow);
  double scale_value() const { return scale_; }
  int64_t growth_tracker() const { return tracker_; }
  bool found_overflow() const;  ///< of any optimizer since the last update()
  std::map<std::string, double> state() const;
  void load_state(const std::map<std::string, double>& state);

 private:
  Options o_;
  double scale_;
  int64_t tracker_ = 0;
  std::map<const Optimizer*, bool> unscaled_;  // and whether a gradient was not finite
  std::set<const Optimizer*> stepped_;
};

/// DeepSpeed's dynamic loss scale: halves after `hysteresis` overflows, doubles after `scale_window` clean steps.
class DynamicLossScaler {
 public:
  struct Options {
    double init_scale = 65536, scale_factor = 2;
    int64_t scale_window = 1000;
    double min_scale = 1;
    int64_t hysteresis = 1;               ///< DeepSpeed's delayed_shift
    bool consecutive_hysteresis = false;  ///< refill the hysteresis at every clean step
    bool raise_error_at_min_scale = true;
  };
  explicit DynamicLossScaler(const Options& options);
  DynamicLossScaler() : DynamicLossScaler(Options{}) {}

  double scale() const { return scale_; }
  int64_t hysteresis() const { return left_; }
  /// Tells the scaler how a step went. Error at an overflow when the scale is already min_scale.
  void update(bool overflow);
  std::map<std::string, double> state() const;
  void load_state(const std::map<std::string, double>& state);

 private:
  Options o_;
  double scale_;
  int64_t iteration_ = 0, last_overflow_ = -1, left_;
};

/// Whether any parameter's gradient has a NaN or an infinity.
bool has_overflow(const std::vector<Variable>& parameters);

}  // namespace lockstep::optim
