// ScheduleList, ChainedScheduler and SequentialLR. See schedules.h.
#include <algorithm>

#include "base/at_end.h"
#include "base/check.h"
#include "extensions/optimizers/schedules.h"

namespace lockstep::optim {

ScheduleList::ScheduleList(const char* name, Optimizer& optimizer, const std::vector<MakeSchedule>& schedules,
                           std::optional<PerGroup> floor)
    : Schedule(optimizer, std::move(floor)) {
  LOCKSTEP_CHECK(!schedules.empty(), "[", name, "] expected at least one schedule, got an empty list");
  std::vector<double> now;
  for (int g = 0; g < optimizer.group_count(); ++g) now.push_back(optimizer.lr(g));
  const AtEnd restores([&] {
    for (int g = 0; g < optimizer.group_count(); ++g) optimizer.set(g, "lr", now[size_t(g)]);
  });
  for (const MakeSchedule& make : schedules) {
    for (int g = 0; g < optimizer.group_count(); ++g) optimizer.set(g, "lr", base(g));
    parts_.push_back(make(optimizer));
    LOCKSTEP_CHECK(!parts_.back()->wants_metric(), "[", name,
                   "] expected schedules that follow the step, got ReduceLROnPlateau, which follows a metric; use it "
                   "alone");
  }
}
void ScheduleList::load_state(const std::map<std::string, double>& state) {
  for (const auto& part : parts_) part->load_state(state);  // the parts load their base rates
  Schedule::load_state(state);
}

ChainedScheduler::ChainedScheduler(Optimizer& optimizer, const std::vector<MakeSchedule>& schedules)
    : ScheduleList("ChainedScheduler", optimizer, schedules, 0.0) {
  for (const auto& part : parts_)
    LOCKSTEP_CHECK(!dynamic_cast<OneCycleLR*>(part.get()) && !dynamic_cast<CyclicLR*>(part.get()) &&
                       !dynamic_cast<OneCycle*>(part.get()),
                   "[ChainedScheduler] expected schedules that scale the learning rate, got a cyclic one, which sets "
                   "it; use SequentialLR");
  apply();
}
double ChainedScheduler::value(int g, int64_t t) const {
  const double base = this->base(g);
  double rate = base;
  for (const auto& part : parts_) rate *= base == 0 ? 0 : part->at(g, t) / base;
  return rate;
}

SequentialLR::SequentialLR(Optimizer& optimizer, const std::vector<MakeSchedule>& schedules,
                           std::vector<int64_t> milestones)
    : ScheduleList("SequentialLR", optimizer, schedules), milestones_(std::move(milestones)) {
  LOCKSTEP_CHECK(milestones_.size() + 1 == schedules.size(), "[SequentialLR] expected ", schedules.size() - 1,
                 " milestones between ", schedules.size(), " schedules, got ", milestones_.size());
  for (size_t i = 0; i < milestones_.size(); ++i)
    LOCKSTEP_CHECK(milestones_[i] > (i ? milestones_[i - 1] : 0),
                   "[SequentialLR] expected increasing milestones >= 1, got ", milestones_[i], " as number ", i + 1);
  apply();
}
std::pair<size_t, int64_t> SequentialLR::place(int64_t t) const {
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), t);
  return {size_t(next - milestones_.begin()), next == milestones_.begin() ? t : t - next[-1]};
}
double SequentialLR::value(int g, int64_t t) const {
  const auto [part, inside] = place(t);
  return parts_[part]->at(g, inside);
}
void SequentialLR::apply() {
  const auto [part, inside] = place(step_);
  if (from_ && inside > 0) parts_[part]->step();
  else parts_[part]->enter(inside);
}

}  // namespace lockstep::optim
