#pragma once
// Learning-rate schedules that few programs need, with the names and options of PyTorch and DeepSpeed. Class Schedule
// explains how schedules act together.
#include "optim/schedule.h"

namespace lockstep::optim {

// --- PyTorch ---

/// A schedule whose rate is a formula of its options O, the step, and `base`, the initial rate of the group.
template <class O> class FormulaLR : public Schedule {
 public:
  using Options = O;                           ///< such as StepLROptions
  FormulaLR(Optimizer& optimizer, O options);  ///< Error for options out of range

 private:
  void check();  ///< checks the options, and sets momentum_ if momentum follows the schedule
  double value(int group, int64_t t) const override;
  double momentum(int group, int64_t t) const override;
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

/// Options of CyclicLR. mode: "triangular" has constant height, "triangular2" halves the height each cycle, "exp_range"
/// multiplies the height by gamma ^ t.
struct CyclicLROptions {
  PerGroup base_lr, max_lr;
  int64_t step_size_up = 2000;
  std::optional<int64_t> step_size_down;  ///< default: step_size_up
  std::string mode = "triangular";
  double gamma = 1;
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.8, max_momentum = 0.9;
};
/// PyTorch's CyclicLR (Smith, 2017): triangles between base_lr and max_lr. Momentum falls while the rate rises.
using CyclicLR = FormulaLR<CyclicLROptions>;

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
  bool wants_metric() const override { return true; }
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

 private:
  double value(int group, int64_t t) const override;
  bool is_better(double metric) const;
  Options o_;
  double best_;
  int64_t bad_ = 0, cooling_ = 0;
};

/// Options of SWALR.
struct SWALROptions {
  PerGroup swa_lr;
  int64_t anneal_epochs = 10;
  std::string anneal_strategy = "cos";  ///< or "linear"
};
/// PyTorch's SWALR: moves the rate from its value at construction to swa_lr within anneal_epochs steps, and then keeps
/// swa_lr.
using SWALR = FormulaLR<SWALROptions>;

// --- DeepSpeed ---

/// Options of LRRangeTest.
struct LRRangeTestOptions {
  PerGroup lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
};
/// Rate at step t: min_lr (1 + step_rate t / step_size). Used to find a good rate (Smith, 2017).
using LRRangeTest = FormulaLR<LRRangeTestOptions>;

/// Options of OneCycle.
struct OneCycleOptions {
  PerGroup cycle_min_lr, cycle_max_lr;
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size;  ///< default: cycle_first_step_size
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0;
};
/// DeepSpeed's OneCycle: a triangle between cycle_min_lr and cycle_max_lr, then decay. Momentum falls while the
/// rate rises.
using OneCycle = FormulaLR<OneCycleOptions>;

// --- schedules composed of schedules, as in PyTorch ---
//   SequentialLR schedule(opt, {scheduled<LinearLR>({.start_factor = 0.1, .total_iters = 100}),
//                               scheduled<CosineAnnealingLR>({.T_max = 900})}, {100});

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
