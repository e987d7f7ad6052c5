// Learning-rate schedules as closed formulas of the step, so that resuming needs only the step number.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace lockstep::optim {

namespace {

void check_positive(const char* name, const char* option, double value) {
  LOCKSTEP_CHECK(value > 0, "[", name, "] expected ", option, " > 0, got ", value);
}

double warmup(Warmup kind, int64_t t, int64_t steps) {
  return kind == Warmup::log ? std::log(double(t + 1)) / std::log(double(steps)) : double(t) / double(steps);
}

/// Returns the step to use in DeepSpeed's formulas at step t. DeepSpeed's schedules give steps 0 and 1 the same value.
int64_t deepspeed_step(int64_t t) { return std::max<int64_t>(t - 1, 0); }

}  // namespace

double PerGroup::operator[](int group) const {
  LOCKSTEP_CHECK(values_.size() == 1 || size_t(group) < values_.size(),
                 "[schedule] expected a value for each group, got ", values_.size(), " values, and none for group ",
                 group, "; add groups before the schedule is made, or give it one value for all");
  return values_.size() == 1 ? values_[0] : values_[size_t(group)];
}

Schedule::Schedule(Optimizer& optimizer, std::optional<PerGroup> floor)
    : optimizer_(optimizer), floor_(std::move(floor)) {
  for (int g = 0; g < optimizer.group_count(); ++g) base_.push_back(optimizer.initial_lr(g));
}
void Schedule::step() {
  from_ = step_++;
  apply();
}
void Schedule::step(double) { step(); }
void Schedule::enter(int64_t t) {
  from_.reset();
  step_ = t;
  apply();
}
void Schedule::apply() {
  for (int g = 0; g < optimizer_.group_count(); ++g) {
    double rate = value(g, step_);
    if (floor_ && from_) {
      const double now = optimizer_.lr(g), before = *from_ < 0 ? base(g) : value(g, *from_), floor = (*floor_)[g];
      if (now != before && before != floor) rate = floor + (now - floor) * ((rate - floor) / (before - floor));
    }
    optimizer_.set(g, "lr", rate);
    if (!momentum_.empty()) optimizer_.set(g, momentum_, momentum(g, step_));
  }
}
std::map<std::string, double> Schedule::state() const {
  std::map<std::string, double> state{{"step", double(step_)}};
  for (int g = 0; g < optimizer_.group_count(); ++g) {
    state["base." + std::to_string(g)] = base(g);
    if (optimizer_.lr(g) != value(g, step_)) state["lr." + std::to_string(g)] = optimizer_.lr(g);
  }
  return state;
}
void Schedule::load_state(const std::map<std::string, double>& state) {
  LOCKSTEP_CHECK(state.count("step"),
                 "[schedule] expected 'step' in the saved state, got none; load what its state() returned");
  std::vector<double> base;
  for (int g = 0; g < optimizer_.group_count(); ++g) {
    const auto found = state.find("base." + std::to_string(g));
    LOCKSTEP_CHECK(found != state.end(), "[schedule] expected a saved base rate for each of ", optimizer_.group_count(),
                   " groups, group ", g, " has none; load a state of as many groups");
    base.push_back(found->second);
  }
  base_ = base;
  enter(int64_t(state.at("step")));
  for (int g = 0; g < optimizer_.group_count(); ++g)  // restores rates that other code had changed
    if (const auto rate = state.find("lr." + std::to_string(g)); rate != state.end())
      optimizer_.set(g, "lr", rate->second);
}
void Schedule::check_groups(const char* name, const char* option, const PerGroup& values) const {
  LOCKSTEP_CHECK(values.count() == 1 || values.count() == optimizer_.group_count(), "[", name, "] expected one ",
                 option, " or one for each of ", optimizer_.group_count(), " groups, got ", values.count());
}

std::function<double(int64_t)> warmup_cosine(int64_t warmup, int64_t steps, double last) {
  return [=](int64_t t) {
    if (t < warmup) return double(t + 1) / double(warmup);
    const double progress = double(t - warmup) / double(std::max<int64_t>(steps - warmup, 1));
    return last + (1 - last) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  };
}

LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<std::function<double(int64_t)>> factors)
    : Schedule(optimizer), factors_(std::move(factors)) {
  const size_t groups = size_t(optimizer.group_count()), got = factors_.size();
  LOCKSTEP_CHECK(got == 1 || got == groups, "[LambdaLR] expected one function or ", groups, ", one per group, got ",
                 got);
  apply();
}
double LambdaLR::value(int g, int64_t t) const {
  const size_t count = factors_.size(), at = count == 1 ? 0 : size_t(g);
  LOCKSTEP_CHECK(at < count, "[LambdaLR] expected a function for each group, got ", count, ", and none for group ", g,
                 "; add groups before the schedule is made");
  return base(g) * factors_[at](t);
}

WarmupLR::WarmupLR(Optimizer& optimizer, Options options) : Schedule(optimizer), o_(std::move(options)) {
  check_groups("WarmupLR", "warmup_min_lr", o_.warmup_min_lr);
  if (o_.warmup_max_lr) check_groups("WarmupLR", "warmup_max_lr", *o_.warmup_max_lr);
  LOCKSTEP_CHECK(o_.warmup_num_steps >= 0, "[WarmupLR] expected warmup_num_steps >= 0, got ", o_.warmup_num_steps);
  o_.warmup_num_steps = std::max<int64_t>(o_.warmup_num_steps, 2);
  apply();
}
double WarmupLR::factor(int64_t t) const {
  return t < o_.warmup_num_steps ? warmup(o_.warmup_type, t, o_.warmup_num_steps) : 1;
}
double WarmupLR::value(int g, int64_t t) const {
  const double low = o_.warmup_min_lr[g], high = o_.warmup_max_lr ? (*o_.warmup_max_lr)[g] : base(g);
  return low + (high - low) * factor(deepspeed_step(t));
}

WarmupDecayLR::WarmupDecayLR(Optimizer& optimizer, Options options)
    : WarmupLR(optimizer,
               {options.warmup_min_lr, options.warmup_max_lr, options.warmup_num_steps, options.warmup_type}),
      total_(options.total_num_steps) {
  check_positive("WarmupDecayLR", "total_num_steps", double(total_));
  apply();
}
double WarmupDecayLR::factor(int64_t t) const {
  if (t < o_.warmup_num_steps) return WarmupLR::factor(t);
  return std::max(0.0, double(total_ - t) / std::max(1.0, double(total_ - o_.warmup_num_steps)));
}

WarmupCosineLR::WarmupCosineLR(Optimizer& optimizer, Options options) : Schedule(optimizer), o_(options) {
  check_positive("WarmupCosineLR", "total_num_steps", double(o_.total_num_steps));
  LOCKSTEP_CHECK(o_.warmup_num_steps >= 0, "[WarmupCosineLR] expected warmup_num_steps >= 0, got ",
                 o_.warmup_num_steps);
  o_.warmup_num_steps = std::max<int64_t>(o_.warmup_num_steps, 2);
  apply();
}
double WarmupCosineLR::value(int g, int64_t step) const {
  if (step == 0) return 0;  // independent of warmup_min_ratio, as in DeepSpeed
  const int64_t t = deepspeed_step(step), n = o_.warmup_num_steps;
  if (t < n) return base(g) * (o_.warmup_min_ratio + (1 - o_.warmup_min_ratio) * warmup(o_.warmup_type, t, n));
  const double progress = std::min(1.0, double(t - n + 1) / std::max(1.0, double(o_.total_num_steps - n)));
  return base(g) *
         std::max(0.0, o_.cos_min_ratio + (1 - o_.cos_min_ratio) * (1 + std::cos(std::numbers::pi * progress)) / 2);
}

}  // namespace lockstep::optim
