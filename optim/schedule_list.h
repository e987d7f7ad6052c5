#pragma once
// Schedules composed of schedules, as in PyTorch:
//   SequentialLR schedule(opt, {scheduled<LinearLR>({.start_factor = 0.1, .total_iters = 100}),
//                               scheduled<CosineAnnealingLR>({.T_max = 900})}, {100});
#include <memory>

#include "optim/schedule.h"

namespace lockstep::optim {

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
