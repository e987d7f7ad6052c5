// Learning-rate schedules as closed formulas of the step, and lists of them. See schedules.h.
#include "extensions/optimizers/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "autograd/agreed.h"
#include "base/at_end.h"
#include "base/check.h"

namespace lockstep::optim {

namespace {

constexpr double pi = std::numbers::pi;

void check_positive(const char* name, const char* option, double value) {
  LOCKSTEP_CHECK(value > 0, "[", name, "] expected ", option, " > 0, got ", value);
}

/// Name of the option that a cyclic momentum sets: "momentum" (SGD) or "beta1" (Adam).
std::string momentum_option(const char* name, const Optimizer& optimizer) {
  for (const char* option : {"momentum", "beta1"})
    if (optimizer.has(option)) return option;
  fail(str("[", name, "] cycle_momentum needs an optimizer with momentum or beta1, got ", optimizer.name(),
           "; set cycle_momentum = false"));
}

template <class O> std::optional<PerGroup> floor_of(const O&) { return 0.0; }
std::optional<PerGroup> floor_of(const CosineAnnealingLR::Options& o) { return o.eta_min; }
std::optional<PerGroup> floor_of(const SWALR::Options& o) { return o.swa_lr; }
std::optional<PerGroup> floor_of(const CosineAnnealingWarmRestarts::Options&) { return {}; }
std::optional<PerGroup> floor_of(const CyclicLR::Options&) { return {}; }
std::optional<PerGroup> floor_of(const LRRangeTest::Options&) { return {}; }
std::optional<PerGroup> floor_of(const OneCycle::Options&) { return {}; }

/// 0 at base_lr, 1 at max_lr.
double height(const CyclicLR::Options& o, int64_t t) {
  const int64_t up = o.step_size_up, total = up + o.step_size_down.value_or(up), inside = t % total;
  const double part = inside <= up ? double(inside) / double(up) : double(total - inside) / double(total - up);
  if (o.mode == "triangular") return part;
  return part * (o.mode == "triangular2" ? std::pow(0.5, double(t / total)) : std::pow(o.gamma, double(t)));
}

int64_t total_of(const OneCycle::Options& o) {
  return o.cycle_first_step_size + o.cycle_second_step_size.value_or(o.cycle_first_step_size);
}
double triangle(const OneCycle::Options& o, int64_t t) {
  const int64_t first = o.cycle_first_step_size, total = total_of(o);
  return t <= first ? double(t) / double(first) : double(total - t) / double(total - first);
}
double decay(const OneCycle::Options& o, int64_t t, double rate) {
  return o.decay_step_size == 0 ? 1 : 1 + rate * double(t - total_of(o)) / double(o.decay_step_size);
}

}  // namespace

template <class O>
FormulaLR<O>::FormulaLR(Optimizer& optimizer, O options)
    : Schedule(optimizer, floor_of(options)), o_(std::move(options)) {
  check();
  apply();
}
template <class O> void FormulaLR<O>::check() {}
template <class O> double FormulaLR<O>::momentum(int, int64_t) const { return 0; }

template <> void StepLR::check() { check_positive("StepLR", "step_size", double(o_.step_size)); }
template <> double StepLR::value(int g, int64_t t) const {
  return base(g) * std::pow(o_.gamma, double(t / o_.step_size));
}
template <> double MultiStepLR::value(int g, int64_t t) const {
  return base(g) * std::pow(o_.gamma, double(std::count_if(o_.milestones.begin(), o_.milestones.end(),
                                                           [t](int64_t m) { return m <= t; })));
}
template <> double ExponentialLR::value(int g, int64_t t) const { return base(g) * std::pow(o_.gamma, double(t)); }
template <> void CosineAnnealingLR::check() { check_positive("CosineAnnealingLR", "T_max", double(o_.T_max)); }
template <> double CosineAnnealingLR::value(int g, int64_t t) const {
  return o_.eta_min + (base(g) - o_.eta_min) * (1 + std::cos(pi * double(t) / double(o_.T_max))) / 2;
}
template <> void CosineAnnealingWarmRestarts::check() {
  check_positive("CosineAnnealingWarmRestarts", "T_0", double(o_.T_0));
  LOCKSTEP_CHECK(o_.T_mult >= 1, "[CosineAnnealingWarmRestarts] expected T_mult >= 1, got ", o_.T_mult);
}
template <> double CosineAnnealingWarmRestarts::value(int g, int64_t t) const {
  int64_t period = o_.T_0, inside = t;
  if (o_.T_mult == 1) inside %= period;
  else
    for (; inside >= period; period *= o_.T_mult) inside -= period;
  return o_.eta_min + (base(g) - o_.eta_min) * (1 + std::cos(pi * double(inside) / double(period))) / 2;
}
template <> void LinearLR::check() {
  LOCKSTEP_CHECK(o_.start_factor > 0 && o_.start_factor <= 1, "[LinearLR] expected start_factor in (0, 1], got ",
                 o_.start_factor);
  LOCKSTEP_CHECK(o_.end_factor >= 0 && o_.end_factor <= 1, "[LinearLR] expected end_factor in [0, 1], got ",
                 o_.end_factor);
  check_positive("LinearLR", "total_iters", double(o_.total_iters));
}
template <> double LinearLR::value(int g, int64_t t) const {
  return base(g) * (o_.start_factor +
                    (o_.end_factor - o_.start_factor) * double(std::min(t, o_.total_iters)) / double(o_.total_iters));
}
template <> void ConstantLR::check() {
  LOCKSTEP_CHECK(o_.factor >= 0 && o_.factor <= 1, "[ConstantLR] expected factor in [0, 1], got ", o_.factor);
}
template <> double ConstantLR::value(int g, int64_t t) const {
  return t < o_.total_iters ? base(g) * o_.factor : base(g);
}
template <> void PolynomialLR::check() { check_positive("PolynomialLR", "total_iters", double(o_.total_iters)); }
template <> double PolynomialLR::value(int g, int64_t t) const {
  return base(g) * std::pow(1 - double(std::min(t, o_.total_iters)) / double(o_.total_iters), o_.power);
}

template <> void CyclicLR::check() {
  for (const auto& [option, values] :
       {std::pair("base_lr", o_.base_lr), std::pair("max_lr", o_.max_lr), std::pair("base_momentum", o_.base_momentum),
        std::pair("max_momentum", o_.max_momentum)})
    check_groups("CyclicLR", option, values);
  check_positive("CyclicLR", "step_size_up", double(o_.step_size_up));
  check_positive("CyclicLR", "step_size_down", double(o_.step_size_down.value_or(1)));
  LOCKSTEP_CHECK(o_.mode == "triangular" || o_.mode == "triangular2" || o_.mode == "exp_range",
                 "[CyclicLR] expected mode 'triangular', 'triangular2' or 'exp_range', got '", o_.mode, "'");
  if (o_.cycle_momentum) momentum_ = momentum_option("CyclicLR", optimizer_);
}
template <> double CyclicLR::value(int g, int64_t t) const {
  return o_.base_lr[g] + (o_.max_lr[g] - o_.base_lr[g]) * height(o_, t);
}
template <> double CyclicLR::momentum(int g, int64_t t) const {
  return o_.max_momentum[g] - (o_.max_momentum[g] - o_.base_momentum[g]) * height(o_, t);
}

template <> void SWALR::check() {
  check_groups("SWALR", "swa_lr", o_.swa_lr);
  LOCKSTEP_CHECK(o_.anneal_epochs >= 0, "[SWALR] expected anneal_epochs >= 0, got ", o_.anneal_epochs);
  LOCKSTEP_CHECK(o_.anneal_strategy == "cos" || o_.anneal_strategy == "linear",
                 "[SWALR] expected anneal_strategy 'cos' or 'linear', got '", o_.anneal_strategy, "'");
}
template <> double SWALR::value(int g, int64_t t) const {
  const double part = o_.anneal_epochs == 0 ? 1 : std::min(1.0, double(t) / double(o_.anneal_epochs));
  const double share = o_.anneal_strategy == "linear" ? part : (1 - std::cos(pi * part)) / 2;
  return base(g) + (o_.swa_lr[g] - base(g)) * share;
}

template <> void LRRangeTest::check() {
  check_groups("LRRangeTest", "lr_range_test_min_lr", o_.lr_range_test_min_lr);
  check_positive("LRRangeTest", "lr_range_test_step_size", double(o_.lr_range_test_step_size));
}
template <> double LRRangeTest::value(int g, int64_t t) const {
  const double part = double(t) / double(o_.lr_range_test_step_size);
  return o_.lr_range_test_min_lr[g] *
         (1 + o_.lr_range_test_step_rate * (o_.lr_range_test_staircase ? std::floor(part) : part));
}

template <> void OneCycle::check() {
  const int64_t first = o_.cycle_first_step_size;
  check_groups("OneCycle", "cycle_min_lr", o_.cycle_min_lr);
  check_groups("OneCycle", "cycle_max_lr", o_.cycle_max_lr);
  check_positive("OneCycle", "cycle_first_step_size", double(first));
  check_positive("OneCycle", "cycle_second_step_size", double(o_.cycle_second_step_size.value_or(first)));
  LOCKSTEP_CHECK(o_.decay_step_size >= 0, "[OneCycle] expected decay_step_size >= 0, got ", o_.decay_step_size);
  if (o_.cycle_momentum) momentum_ = momentum_option("OneCycle", optimizer_);
}
template <> double OneCycle::value(int g, int64_t t) const {
  const double low = o_.cycle_min_lr[g], high = o_.cycle_max_lr[g];
  return t <= total_of(o_) ? low + (high - low) * triangle(o_, t) : low / decay(o_, t, o_.decay_lr_rate);
}
template <> double OneCycle::momentum(int, int64_t t) const {
  const double low = o_.cycle_min_mom, high = o_.cycle_max_mom;
  return t <= total_of(o_) ? high - (high - low) * triangle(o_, t) : high * decay(o_, t, o_.decay_mom_rate);
}

template class FormulaLR<StepLROptions>;
template class FormulaLR<MultiStepLROptions>;
template class FormulaLR<ExponentialLROptions>;
template class FormulaLR<CosineAnnealingLROptions>;
template class FormulaLR<WarmRestartsOptions>;
template class FormulaLR<LinearLROptions>;
template class FormulaLR<ConstantLROptions>;
template class FormulaLR<PolynomialLROptions>;
template class FormulaLR<CyclicLROptions>;
template class FormulaLR<SWALROptions>;
template class FormulaLR<LRRangeTestOptions>;
template class FormulaLR<OneCycleOptions>;

OneCycleLR::OneCycleLR(Optimizer& optimizer, Options options) : Schedule(optimizer), o_(std::move(options)) {
  check_groups("OneCycleLR", "max_lr", o_.max_lr);
  check_positive("OneCycleLR", "total_steps", double(o_.total_steps));
  LOCKSTEP_CHECK(o_.pct_start >= 0 && o_.pct_start <= 1, "[OneCycleLR] expected pct_start in [0, 1], got ",
                 o_.pct_start);
  LOCKSTEP_CHECK(o_.anneal_strategy == "cos" || o_.anneal_strategy == "linear",
                 "[OneCycleLR] expected anneal_strategy 'cos' or 'linear', got '", o_.anneal_strategy, "'");
  if (o_.cycle_momentum) momentum_ = momentum_option("OneCycleLR", optimizer);
  // volatile: keeps the compiler from fusing this product with the subtraction of 1 (FMA), so the product is rounded
  const volatile double steps_up = o_.pct_start * double(o_.total_steps);
  const double up = steps_up - 1, last = double(o_.total_steps) - 1;
  // A phase: its last step; the rate at its begin and at its end (0 initial, 1 maximum, 2 final); the momentum at its
  // begin and at its end (0 maximum, 1 base).
  if (o_.three_phase) phases_ = {{up, 0, 1, 0, 1}, {2 * steps_up - 2, 1, 0, 1, 0}, {last, 0, 2, 0, 0}};
  else phases_ = {{up, 0, 1, 0, 1}, {last, 1, 2, 1, 0}};
  for (size_t i = 0; i < phases_.size(); ++i) {
    const double begin = i ? phases_[i - 1].end : 0;
    LOCKSTEP_CHECK(begin != phases_[i].end || (i > 0 && begin == last),
                   "[OneCycleLR] expected at least one step in each phase, got none in phase ", i + 1, " of ",
                   phases_.size(), " with total_steps ", o_.total_steps, " and pct_start ", o_.pct_start,
                   "; take more steps or another pct_start");
  }
  apply();
}
void OneCycleLR::step() {
  LOCKSTEP_CHECK(step_ < o_.total_steps, "[OneCycleLR] expected at most ", o_.total_steps,
                 " calls of step() (total_steps), got one more; raise total_steps");
  Schedule::step();
}
double OneCycleLR::anneal(int64_t t, bool of_momentum, int g) const {
  const double start_lr = o_.max_lr[g] / o_.div_factor;
  const double rates[] = {start_lr, o_.max_lr[g], start_lr / o_.final_div_factor},
               momenta[] = {o_.max_momentum, o_.base_momentum};
  double begin = 0;
  t = std::min(t, o_.total_steps - 1);  // the last call keeps the rate of the call before
  for (size_t i = 0;; ++i) {
    const Phase& p = phases_[i];
    if (double(t) > p.end && i + 1 < phases_.size()) {
      begin = p.end;
      continue;
    }
    const double part = (double(t) - begin) / (p.end - begin);
    const double from = of_momentum ? momenta[p.from_momentum] : rates[p.from_lr],
                 to = of_momentum ? momenta[p.to_momentum] : rates[p.to_lr];
    return o_.anneal_strategy == "linear" ? from + (to - from) * part
                                          : to + (from - to) / 2 * (1 + std::cos(pi * part));
  }
}
double OneCycleLR::value(int g, int64_t t) const { return anneal(t, false, g); }
double OneCycleLR::momentum(int g, int64_t t) const { return anneal(t, true, g); }

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, Options options)
    : Schedule(optimizer), o_(std::move(options)) {
  LOCKSTEP_CHECK(o_.mode == "min" || o_.mode == "max", "[ReduceLROnPlateau] expected mode 'min' or 'max', got '",
                 o_.mode, "'");
  LOCKSTEP_CHECK(o_.threshold_mode == "rel" || o_.threshold_mode == "abs",
                 "[ReduceLROnPlateau] expected threshold_mode 'rel' or 'abs', got '", o_.threshold_mode, "'");
  LOCKSTEP_CHECK(o_.factor < 1, "[ReduceLROnPlateau] expected factor < 1, got ", o_.factor);
  check_groups("ReduceLROnPlateau", "min_lr", o_.min_lr);
  best_ = o_.mode == "min" ? INFINITY : -INFINITY;
}
bool ReduceLROnPlateau::is_better(double metric) const {
  const double sign = o_.mode == "min" ? -1 : 1;
  const double target = o_.threshold_mode == "rel" ? best_ * (1 + sign * o_.threshold) : best_ + sign * o_.threshold;
  return o_.mode == "min" ? metric < target : metric > target;
}
void ReduceLROnPlateau::step() {
  fail("[ReduceLROnPlateau] expected step(metric), got step(): this schedule needs the metric that it watches");
}
void ReduceLROnPlateau::step(double metric) {
  metric = agreed(optimizer_.parameters(), metric, "metric of ReduceLROnPlateau");
  ++step_;
  if (is_better(metric)) best_ = metric, bad_ = 0;
  else ++bad_;
  if (cooling_ > 0) {
    --cooling_;
    bad_ = 0;
  }
  if (bad_ <= o_.patience) return;
  for (int g = 0; g < optimizer_.group_count(); ++g) {
    const double old = optimizer_.lr(g), next = std::max(old * o_.factor, o_.min_lr[g]);
    if (old - next > o_.eps) optimizer_.set(g, "lr", next);
  }
  cooling_ = o_.cooldown;
  bad_ = 0;
}
double ReduceLROnPlateau::value(int g, int64_t) const { return optimizer_.lr(g); }
std::map<std::string, double> ReduceLROnPlateau::state() const {
  auto state = Schedule::state();
  state["best"] = best_;
  state["bad"] = double(bad_);
  state["cooling"] = double(cooling_);
  for (int g = 0; g < optimizer_.group_count(); ++g) state["lr." + std::to_string(g)] = optimizer_.lr(g);
  return state;
}
void ReduceLROnPlateau::load_state(const std::map<std::string, double>& state) {
  for (const char* key : {"best", "bad", "cooling"})
    LOCKSTEP_CHECK(state.count(key), "[ReduceLROnPlateau] expected '", key,
                   "' in the saved state, got none; load what its state() returned");
  Schedule::load_state(state);
  best_ = state.at("best");
  bad_ = int64_t(state.at("bad"));
  cooling_ = int64_t(state.at("cooling"));
}

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
