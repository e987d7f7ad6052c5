#pragma once
// Learning-rate schedules with the names and options of PyTorch and DeepSpeed; StepLR, CosineAnnealingLR, OneCycleLR
// and their kin are in <lockstep/optimizers.h>. A schedule sets the optimizer's "lr" at construction (step 0) and at
// every step(); call step() once after each optimizer step.
//
// A rate is a closed formula of the step and the base rate, Optimizer::initial_lr(). If another schedule or set_lr()
// has changed the rate, step() multiplies the changed rate by formula(t) / formula(t - 1) instead, as PyTorch's
// recursions do. See the constructor of Schedule for exceptions.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace lockstep::optim {

/// One value for all parameter groups, or one per group.
class PerGroup {
 public:
  PerGroup(double value = 0) : values_{value} {}                        // NOLINT: implicit on purpose
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}  // NOLINT
  double operator[](int group) const;                                   ///< Error if the group has none
  int count() const { return int(values_.size()); }                     ///< 1, or the number of groups

 private:
  std::vector<double> values_;
};

/// Base class. Subclasses give the rate of a group at any step.
class Schedule {
 public:
  /// floor: tells what a step does to a rate that other code has changed. With a floor, (rate - floor) is multiplied by
  /// the factor by which the formula's (rate - floor) changes in this step. nullopt: the formula's rate replaces it.
  explicit Schedule(Optimizer& optimizer, std::optional<PerGroup> floor = {});
  virtual ~Schedule() = default;

  /// Enters the next step. A schedule that wants_metric() needs the metric; all others ignore it.
  virtual void step();
  virtual void step(double metric);
  virtual bool wants_metric() const { return false; }  ///< true if the schedule follows a metric
  /// Sets the rates (and momenta) of step t, overwriting changes by other code, and continues from step t.
  void enter(int64_t t);
  /// The rate of a group at step t.
  double at(int group, int64_t t) const { return value(group, t); }
  int64_t last_step() const { return step_; }                      ///< the current step t
  double lr(int group = 0) const { return optimizer_.lr(group); }  ///< current rate
  /// State by name: step, base rates, and current rates that other code has changed.
  virtual std::map<std::string, double> state() const;
  virtual void load_state(const std::map<std::string, double>& state);  ///< Error for missing entries

 protected:
  /// Sets the rates for the current step, step_, and the momenta if the schedule changes them too.
  virtual void apply();
  /// Base rate of a group; for a group that was added after construction, the optimizer's initial_lr().
  double base(int g) const { return g < int(base_.size()) ? base_[size_t(g)] : optimizer_.initial_lr(g); }
  void check_groups(const char* name, const char* option, const PerGroup& values) const;

  Optimizer& optimizer_;
  int64_t step_ = 0;
  std::optional<int64_t> from_ = -1;  // step whose rates are set; -1: base rates; nullopt: apply() overwrites any rate
  std::string momentum_;              // option that follows the schedule ("momentum" or "beta1"), if any

 private:
  /// value(): the rate of `group` at step t. momentum(): the value at step t of the option that momentum_ names.
  virtual double value(int group, int64_t t) const = 0;
  virtual double momentum(int, int64_t) const { return 0; }
  std::vector<double> base_;  // rates of the groups at construction
  std::optional<PerGroup> floor_;
};

// --- PyTorch ---

/// Rate at step t: base * factor(t), where base is the group's initial rate.
class LambdaLR : public Schedule {
 public:
  LambdaLR(Optimizer& optimizer, std::function<double(int64_t t)> factor)
      : LambdaLR(optimizer, std::vector{std::move(factor)}) {}
  /// One function for each group, or one for all. Error for another number.
  LambdaLR(Optimizer& optimizer, std::vector<std::function<double(int64_t t)>> factors);

 private:
  double value(int group, int64_t t) const override;
  std::vector<std::function<double(int64_t)>> factors_;
};

/// For LambdaLR: linear warm-up to 1 in `warmup` steps, then half a cosine down to `last` at step `steps` (as in
/// nanoGPT).
std::function<double(int64_t t)> warmup_cosine(int64_t warmup, int64_t steps, double last = 0);

// --- DeepSpeed ---

/// Shape of the warm-up in DeepSpeed's schedules.
enum class Warmup { log, linear };

/// The rate goes from warmup_min_lr to warmup_max_lr (default: the base rate) in warmup_num_steps steps, then stays.
class WarmupLR : public Schedule {
 public:
  struct Options {
    PerGroup warmup_min_lr = 0;
    std::optional<PerGroup> warmup_max_lr;
    int64_t warmup_num_steps = 1000;
    Warmup warmup_type = Warmup::log;
  };
  WarmupLR(Optimizer& optimizer, Options options);

 protected:
  double value(int group, int64_t t) const override;
  virtual double factor(int64_t t) const;  ///< 0 at warmup_min_lr, 1 at warmup_max_lr
  Options o_;
};

/// The rate warms up as in WarmupLR, then falls linearly to 0 at step total_num_steps.
class WarmupDecayLR : public WarmupLR {
 public:
  struct Options {
    int64_t total_num_steps;
    PerGroup warmup_min_lr = 0;
    std::optional<PerGroup> warmup_max_lr;
    int64_t warmup_num_steps = 1000;
    Warmup warmup_type = Warmup::log;
  };
  WarmupDecayLR(Optimizer& optimizer, Options options);

 protected:
  double factor(int64_t t) const override;

 private:
  int64_t total_;
};

/// The base rate times a ratio, which warms up from warmup_min_ratio to 1 and then falls as a cosine to cos_min_ratio
/// at step total_num_steps.
class WarmupCosineLR : public Schedule {
 public:
  struct Options {
    int64_t total_num_steps;
    double warmup_min_ratio = 0;
    int64_t warmup_num_steps = 1000;
    double cos_min_ratio = 1e-4;
    Warmup warmup_type = Warmup::log;
  };
  WarmupCosineLR(Optimizer& optimizer, Options options);

 private:
  double value(int group, int64_t t) const override;
  Options o_;
};

/// Creates a schedule for an optimizer.
using MakeSchedule = std::function<std::unique_ptr<Schedule>(Optimizer& optimizer)>;

/// Returns a function that makes a schedule of type Class with `options`.
template <class Class> MakeSchedule scheduled(typename Class::Options options) {
  return [options](Optimizer& optimizer) { return std::make_unique<Class>(optimizer, options); };
}

}  // namespace lockstep::optim
