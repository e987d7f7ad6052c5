#pragma once
// Learning-rate schedules with the names and options of PyTorch and DeepSpeed. A schedule sets the optimizer's "lr" at
// construction (step 0) and at every step(); call step() once after each optimizer step.
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

  /// Enters the next step. ReduceLROnPlateau needs the metric; all other schedules ignore the metric.
  virtual void step();
  virtual void step(double metric);
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
  LambdaLR(Optimizer& optimizer, std::function<double(int64_t t)> factor);

 private:
  double value(int group, int64_t t) const override;
  std::function<double(int64_t)> factor_;
};

/// For LambdaLR: linear warm-up to 1 in `warmup` steps, then half a cosine down to `last` at step `steps` (as in
/// nanoGPT).
std::function<double(int64_t t)> warmup_cosine(int64_t warmup, int64_t steps, double last);

/// A schedule whose rate is a formula of its options O, the step, and `base`, the initial rate of the group.
template <class O> class FormulaLR : public Schedule {
 public:
  using Options = O;                           ///< see the schedules below
  FormulaLR(Optimizer& optimizer, O options);  ///< Error for options out of range

 private:
  double value(int group, int64_t t) const override;
  O o_;
};

/// Options of StepLR.
struct StepLROptions {
  int64_t step_size;
  double gamma = 0.1;
};
/// Rate at step t: base * gamma ^ floor(t / step_size).
using StepLR = FormulaLR<StepLROptions>;

/// Options of MultiStepLR.
struct MultiStepLROptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};
/// Rate at step t: base * gamma ^ (number of milestones reached).
using MultiStepLR = FormulaLR<MultiStepLROptions>;

/// Options of ExponentialLR.
struct ExponentialLROptions {
  double gamma;
};
/// Rate at step t: base * gamma ^ t.
using ExponentialLR = FormulaLR<ExponentialLROptions>;

/// Options of CosineAnnealingLR.
struct CosineAnnealingLROptions {
  int64_t T_max;
  double eta_min = 0;
};
/// Rate at step t: eta_min + (base - eta_min) (1 + cos(pi t / T_max)) / 2.
using CosineAnnealingLR = FormulaLR<CosineAnnealingLROptions>;

/// Options of CosineAnnealingWarmRestarts.
struct WarmRestartsOptions {
  int64_t T_0, T_mult = 1;
  double eta_min = 0;
};
/// Cosine from base to eta_min over T_0 steps, then again over T_0 T_mult steps, and so on (SGDR; Loshchilov and
/// Hutter, 2017).
using CosineAnnealingWarmRestarts = FormulaLR<WarmRestartsOptions>;

/// Options of LinearLR.
struct LinearLROptions {
  double start_factor = 1.0 / 3, end_factor = 1;
  int64_t total_iters = 5;
};
/// Rate: base times a factor that goes linearly from start_factor to end_factor in total_iters steps.
using LinearLR = FormulaLR<LinearLROptions>;

/// Options of ConstantLR.
struct ConstantLROptions {
  double factor = 1.0 / 3;
  int64_t total_iters = 5;
};
/// Rate: base * factor until step total_iters, then base.
using ConstantLR = FormulaLR<ConstantLROptions>;

/// Options of PolynomialLR.
struct PolynomialLROptions {
  int64_t total_iters = 5;
  double power = 1;
};
/// Rate at step t: base * (1 - t / total_iters) ^ power.
using PolynomialLR = FormulaLR<PolynomialLROptions>;

/// PyTorch's OneCycleLR (Smith, 2018): the rate goes up to max_lr, then down far below its first value. Momentum falls
/// while the rate rises.
class OneCycleLR : public Schedule {
 public:
  struct Options {
    PerGroup max_lr;
    int64_t total_steps = 0;
    double pct_start = 0.3;
    std::string anneal_strategy = "cos";  ///< or "linear"
    bool cycle_momentum = true;
    double base_momentum = 0.85, max_momentum = 0.95, div_factor = 25, final_div_factor = 1e4;
    bool three_phase = false;
  };
  OneCycleLR(Optimizer& optimizer, Options options);
  void step() override;  ///< Error after total_steps calls; the last call leaves the rate as it is

 private:
  double value(int group, int64_t t) const override;
  double momentum(int group, int64_t t) const override;
  struct Phase {
    double end;
    int from_lr, to_lr, from_momentum, to_momentum;
  };
  double anneal(int64_t t, bool of_momentum, int group) const;
  Options o_;
  std::vector<Phase> phases_;
};

/// PyTorch's CyclicLR (Smith, 2017): triangles between base_lr and max_lr. Momentum falls while the rate rises. mode:
/// "triangular" has constant height, "triangular2" halves the height each cycle, "exp_range" multiplies the height by
/// gamma ^ t.
class CyclicLR : public Schedule {
 public:
  struct Options {
    PerGroup base_lr, max_lr;
    int64_t step_size_up = 2000;
    std::optional<int64_t> step_size_down;  ///< default: step_size_up
    std::string mode = "triangular";
    double gamma = 1;
    bool cycle_momentum = true;
    PerGroup base_momentum = 0.8, max_momentum = 0.9;
  };
  CyclicLR(Optimizer& optimizer, Options options);

 private:
  double value(int group, int64_t t) const override;
  double momentum(int group, int64_t t) const override;
  double height(int64_t t) const;  ///< 0 at base_lr, 1 at max_lr
  Options o_;
};

/// Multiplies the rate by `factor` when the metric has not improved for `patience` steps. Under DistributedDataParallel
/// or ZeRO all ranks must call step(metric); the mean over ranks is used.
class ReduceLROnPlateau : public Schedule {
 public:
  struct Options {
    std::string mode = "min";  ///< or "max"
    double factor = 0.1;
    int64_t patience = 10;
    double threshold = 1e-4;
    std::string threshold_mode = "rel";  ///< or "abs"
    int64_t cooldown = 0;
    PerGroup min_lr = 0;
    double eps = 1e-8;
  };
  ReduceLROnPlateau(Optimizer& optimizer, Options options);
  void step() override;  ///< Error: the metric is required
  void step(double metric) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

 private:
  double value(int group, int64_t t) const override;
  bool is_better(double metric) const;
  Options o_;
  double best_;
  int64_t bad_ = 0, cooling_ = 0;
};

// --- DeepSpeed ---

/// Shape of the warm-up in DeepSpeed's schedules.
enum class Warmup { log, linear };
/// "log" or "linear"; Error for other names.
Warmup parse_warmup(const std::string& name);

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

/// Rate at step t: min_lr (1 + step_rate t / step_size). Used to find a good rate (Smith, 2017).
class LRRangeTest : public Schedule {
 public:
  struct Options {
    PerGroup lr_range_test_min_lr = 1e-3;
    int64_t lr_range_test_step_size = 2000;
    double lr_range_test_step_rate = 1;
    bool lr_range_test_staircase = false;
  };
  LRRangeTest(Optimizer& optimizer, Options options);

 private:
  double value(int group, int64_t t) const override;
  Options o_;
};

/// DeepSpeed's OneCycle: a triangle between cycle_min_lr and cycle_max_lr, then decay. Momentum falls while the
/// rate rises.
class OneCycle : public Schedule {
 public:
  struct Options {
    PerGroup cycle_min_lr, cycle_max_lr;
    double decay_lr_rate = 0;
    int64_t cycle_first_step_size = 2000;
    std::optional<int64_t> cycle_second_step_size;
    int64_t decay_step_size = 0;
    bool cycle_momentum = true;
    double cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0;
  };
  OneCycle(Optimizer& optimizer, Options options);

 private:
  double value(int group, int64_t t) const override;
  double momentum(int group, int64_t t) const override;
  double triangle(int64_t t) const;
  double decay(int64_t t, double rate) const;
  Options o_;
  int64_t first_, total_;
};

// --- schedules composed of schedules, as in PyTorch (schedule_list.cpp) ---
//   SequentialLR schedule(opt, {scheduled<LinearLR>({.start_factor = 0.1, .total_iters = 100}),
//                               scheduled<CosineAnnealingLR>({.T_max = 900})}, {100});

/// Creates a schedule for an optimizer.
using MakeSchedule = std::function<std::unique_ptr<Schedule>(Optimizer& optimizer)>;

/// Returns a function that makes a schedule of type Class with `options`.
template <class Class> MakeSchedule scheduled(typename Class::Options options) {
  return [options](Optimizer& optimizer) { return std::make_unique<Class>(optimizer, options); };
}

/// Base of ChainedScheduler and SequentialLR. All schedules of the list start from the same base rates. Error for an
/// empty list, or for ReduceLROnPlateau.
class ScheduleList : public Schedule {
 public:
  /// Makes the schedules. name: the class name in error messages. floor: as in Schedule's constructor.
  ScheduleList(const char* name, Optimizer& optimizer, const std::vector<MakeSchedule>& schedules,
               std::optional<PerGroup> floor = {});
  void load_state(const std::map<std::string, double>& state) override;

 protected:
  std::vector<std::unique_ptr<Schedule>> parts_;
};

/// Multiplies the base rate by the factors of all schedules of the list. Error for schedules that cycle (OneCycleLR,
/// CyclicLR, OneCycle).
class ChainedScheduler : public ScheduleList {
 public:
  /// All schedules start at step 0.
  ChainedScheduler(Optimizer& optimizer, const std::vector<MakeSchedule>& schedules);

 private:
  double value(int group, int64_t t) const override;
};

/// Runs one schedule after another. Each later schedule begins at a milestone, with its own step 0.
class SequentialLR : public ScheduleList {
 public:
  /// Error unless the milestones increase and there is one milestone less than there are schedules.
  SequentialLR(Optimizer& optimizer, const std::vector<MakeSchedule>& schedules, std::vector<int64_t> milestones);

 private:
  double value(int group, int64_t t) const override;
  void apply() override;
  /// The schedule that is active at step t, and that schedule's own step.
  std::pair<size_t, int64_t> place(int64_t t) const;
  std::vector<int64_t> milestones_;
};

}  // namespace lockstep::optim
