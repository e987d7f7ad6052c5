#pragma once
// Schedules made of schedules, as PyTorch has them:
//   SequentialLR schedule(opt, {scheduled<LinearLR>({.start_factor = 0.1, .total_iters = 100}),
//                               scheduled<CosineAnnealingLR>({.T_max = 900})}, {100});
#include <memory>

#include "optim/schedule.h"

namespace lockstep::optim {

using MakeSchedule = std::function<std::unique_ptr<Schedule>(Optimizer& optimizer)>;

/// How to make a schedule with these options.
template <class Class> MakeSchedule scheduled(typename Class::Options options) {
  return [options](Optimizer& optimizer) { return std::make_unique<Class>(optimizer, options); };
}

/// Several schedules that start from the same rates. Error for an empty list, and for one that follows a metric.
class ScheduleList : public Schedule {
 public:
  ScheduleList(const char* name, Optimizer& optimizer, const std::vector<MakeSchedule>& schedules,
               std::optional<PerGroup> floor = {});
  void load_state(const std::map<std::string, double>& state) override;

 protected:
  std::vector<std::unique_ptr<Schedule>> parts_;
};

/// base * the product of the factors that the schedules make of it. Error for schedules that turn momentum, too.
class ChainedScheduler : public ScheduleList {
 public:
  ChainedScheduler(Optimizer& optimizer, const std::vector<MakeSchedule>& schedules);

 private:
  double value(int group, int64_t t) const override;
};

/// One after another: the next begins, at its step 0, where a milestone is reached.
class SequentialLR : public ScheduleList {
 public:
  /// Error unless milestones rise, one fewer than schedules.
  SequentialLR(Optimizer& optimizer, const std::vector<MakeSchedule>& schedules, std::vector<int64_t> milestones);

 private:
  double value(int group, int64_t t) const override;
  void apply() override;
  /// The schedule of step t, and the step that it then is at.
  std::pair<size_t, int64_t> place(int64_t t) const;
  std::vector<int64_t> milestones_;
};

}  // namespace lockstep::optim
