#pragma once
// Loss scaling for f16: the loss is multiplied so that small gradients do not underflow, gradients are divided before
// the step, and steps with overflowed gradients are skipped. Two schemes: PyTorch's GradScaler, DeepSpeed's
// DynamicLossScaler.
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

  /// The loss times the scale.
  Variable scale(const Variable& loss) const;
  /// Divides the optimizer's gradients by the scale and records overflow. Error on a second call before update().
  void unscale(Optimizer& optimizer);
  /// Calls unscale() if needed, then optimizer.step() unless a gradient is NaN or infinite. True if it stepped.
  bool step(Optimizer& optimizer);
  /// Adjusts the scale after a step. Error if no optimizer was unscaled or stepped since the last call.
  void update();
  /// Adjusts the scale after a step that another object (zero::Zero) made or skipped.
  void update(bool found_overflow);
  double scale_value() const { return scale_; }        ///< current scale
  int64_t growth_tracker() const { return tracker_; }  ///< steps without overflow since the scale's last change
  /// True if any optimizer's gradients overflowed since the last update().
  bool found_overflow() const;
  /// Scale and growth tracker.
  std::map<std::string, double> state() const;
  /// Loads what state() returned. Error for a missing entry.
  void load_state(const std::map<std::string, double>& state);

 private:
  Options o_;
  double scale_;
  int64_t tracker_ = 0;
  std::map<const Optimizer*, bool> unscaled_;  // optimizers after unscale(); true: a gradient was NaN or infinite
  std::set<const Optimizer*> stepped_;
};

/// DeepSpeed's dynamic loss scale: divided by scale_factor after `hysteresis` overflows, multiplied by
/// scale_factor after scale_window steps without overflow.
class DynamicLossScaler {
 public:
  struct Options {
    double init_scale = 65536, scale_factor = 2;
    int64_t scale_window = 1000;
    double min_scale = 1;
    int64_t hysteresis = 1;               ///< DeepSpeed's delayed_shift
    bool consecutive_hysteresis = false;  ///< true: restore the hysteresis after every step without overflow
    bool raise_error_at_min_scale = true;
  };
  explicit DynamicLossScaler(const Options& options);
  DynamicLossScaler() : DynamicLossScaler(Options{}) {}

  /// Current scale.
  double scale() const { return scale_; }
  /// Overflows left until the scale is reduced.
  int64_t hysteresis() const { return left_; }
  /// Records the outcome of a step. Error on overflow at min_scale, if raise_error_at_min_scale.
  void update(bool overflow);
  /// Scale and counters.
  std::map<std::string, double> state() const;
  /// Loads what state() returned. Error for a missing entry.
  void load_state(const std::map<std::string, double>& state);

 private:
  Options o_;
  double scale_;
  int64_t iteration_ = 0, last_overflow_ = -1, left_;
};

/// True if a gradient contains a NaN or an infinity.
bool has_overflow(const std::vector<Variable>& parameters);

}  // namespace lockstep::optim
