// Learning-rate schedules as closed formulas of the step, so the rate of any step can be computed and resuming needs
// only the step number. See schedule.h.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "autograd/agreed.h"
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

double warmup(Warmup kind, int64_t t, int64_t steps) {
  return kind == Warmup::log ? std::log(double(t + 1)) / std::log(double(steps)) : double(t) / double(steps);
}

/// Returns the step to use in DeepSpeed's formulas at step t. DeepSpeed's schedules give steps 0 and 1 the same value.
int64_t deepspeed_step(int64_t t) { return std::max<int64_t>(t - 1, 0); }

template <class O> void check(const O&) {}
void check(const StepLR::Options& o) { check_positive("StepLR", "step_size", double(o.step_size)); }
void check(const CosineAnnealingLR::Options& o) { check_positive("CosineAnnealingLR", "T_max", double(o.T_max)); }
void check(const CosineAnnealingWarmRestarts::Options& o) {
  check_positive("CosineAnnealingWarmRestarts", "T_0", double(o.T_0));
  LOCKSTEP_CHECK(o.T_mult >= 1, "[CosineAnnealingWarmRestarts] expected T_mult >= 1, got ", o.T_mult);
}
void check(const LinearLR::Options& o) {
  LOCKSTEP_CHECK(o.start_factor > 0 && o.start_factor <= 1, "[LinearLR] expected start_factor in (0, 1], got ",
                 o.start_factor);
  LOCKSTEP_CHECK(o.end_factor >= 0 && o.end_factor <= 1, "[LinearLR] expected end_factor in [0, 1], got ",
                 o.end_factor);
  check_positive("LinearLR", "total_iters", double(o.total_iters));
}
void check(const ConstantLR::Options& o) {
  LOCKSTEP_CHECK(o.factor >= 0 && o.factor <= 1, "[ConstantLR] expected factor in [0, 1], got ", o.factor);
}
void check(const PolynomialLR::Options& o) { check_positive("PolynomialLR", "total_iters", double(o.total_iters)); }

template <class O> std::optional<PerGroup> floor_of(const O&) { return 0.0; }
std::optional<PerGroup> floor_of(const CosineAnnealingLR::Options& o) { return o.eta_min; }
std::optional<PerGroup> floor_of(const CosineAnnealingWarmRestarts::Options&) { return {}; }

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

LambdaLR::LambdaLR(Optimizer& optimizer, std::function<double(int64_t)> factor)
    : Schedule(optimizer), factor_(std::move(factor)) {
  apply();
}
double LambdaLR::value(int g, int64_t t) const { return base(g) * factor_(t); }

template <class O>
FormulaLR<O>::FormulaLR(Optimizer& optimizer, O options)
    : Schedule(optimizer, floor_of(options)), o_(std::move(options)) {
  check(o_);
  apply();
}

template <> double StepLR::value(int g, int64_t t) const {
  return base(g) * std::pow(o_.gamma, double(t / o_.step_size));
}
template <> double MultiStepLR::value(int g, int64_t t) const {
  return base(g) * std::pow(o_.gamma, double(std::count_if(o_.milestones.begin(), o_.milestones.end(),
                                                           [t](int64_t m) { return m <= t; })));
}
template <> double ExponentialLR::value(int g, int64_t t) const { return base(g) * std::pow(o_.gamma, double(t)); }
template <> double CosineAnnealingLR::value(int g, int64_t t) const {
  return o_.eta_min + (base(g) - o_.eta_min) * (1 + std::cos(pi * double(t) / double(o_.T_max))) / 2;
}
template <> double CosineAnnealingWarmRestarts::value(int g, int64_t t) const {
  int64_t period = o_.T_0, inside = t;
  if (o_.T_mult == 1) inside %= period;
  else
    for (; inside >= period; period *= o_.T_mult) inside -= period;
  return o_.eta_min + (base(g) - o_.eta_min) * (1 + std::cos(pi * double(inside) / double(period))) / 2;
}
template <> double LinearLR::value(int g, int64_t t) const {
  return base(g) * (o_.start_factor +
                    (o_.end_factor - o_.start_factor) * double(std::min(t, o_.total_iters)) / double(o_.total_iters));
}
template <> double ConstantLR::value(int g, int64_t t) const {
  return t < o_.total_iters ? base(g) * o_.factor : base(g);
}
template <> double PolynomialLR::value(int g, int64_t t) const {
  return base(g) * std::pow(1 - double(std::min(t, o_.total_iters)) / double(o_.total_iters), o_.power);
}

template class FormulaLR<StepLROptions>;
template class FormulaLR<MultiStepLROptions>;
template class FormulaLR<ExponentialLROptions>;
template class FormulaLR<CosineAnnealingLROptions>;
template class FormulaLR<WarmRestartsOptions>;
template class FormulaLR<LinearLROptions>;
template class FormulaLR<ConstantLROptions>;
template class FormulaLR<PolynomialLROptions>;

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

CyclicLR::CyclicLR(Optimizer& optimizer, Options options) : Schedule(optimizer), o_(std::move(options)) {
  for (const auto& [option, values] :
       {std::pair("base_lr", o_.base_lr), std::pair("max_lr", o_.max_lr), std::pair("base_momentum", o_.base_momentum),
        std::pair("max_momentum", o_.max_momentum)})
    check_groups("CyclicLR", option, values);
  check_positive("CyclicLR", "step_size_up", double(o_.step_size_up));
  check_positive("CyclicLR", "step_size_down", double(o_.step_size_down.value_or(1)));
  LOCKSTEP_CHECK(o_.mode == "triangular" || o_.mode == "triangular2" || o_.mode == "exp_range",
                 "[CyclicLR] expected mode 'triangular', 'triangular2' or 'exp_range', got '", o_.mode, "'");
  if (o_.cycle_momentum) momentum_ = momentum_option("CyclicLR", optimizer);
  apply();
}
double CyclicLR::height(int64_t t) const {
  const int64_t up = o_.step_size_up, total = up + o_.step_size_down.value_or(up), inside = t % total;
  const double part = inside <= up ? double(inside) / double(up) : double(total - inside) / double(total - up);
  if (o_.mode == "triangular") return part;
  return part * (o_.mode == "triangular2" ? std::pow(0.5, double(t / total)) : std::pow(o_.gamma, double(t)));
}
double CyclicLR::value(int g, int64_t t) const { return o_.base_lr[g] + (o_.max_lr[g] - o_.base_lr[g]) * height(t); }
double CyclicLR::momentum(int g, int64_t t) const {
  return o_.max_momentum[g] - (o_.max_momentum[g] - o_.base_momentum[g]) * height(t);
}

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

Warmup parse_warmup(const std::string& name) {
  LOCKSTEP_CHECK(name == "log" || name == "linear", "[warmup_type] expected 'log' or 'linear', got '", name, "'");
  return name == "log" ? Warmup::log : Warmup::linear;
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
  return base(g) * std::max(0.0, o_.cos_min_ratio + (1 - o_.cos_min_ratio) * (1 + std::cos(pi * progress)) / 2);
}

LRRangeTest::LRRangeTest(Optimizer& optimizer, Options options) : Schedule(optimizer), o_(std::move(options)) {
  check_groups("LRRangeTest", "lr_range_test_min_lr", o_.lr_range_test_min_lr);
  check_positive("LRRangeTest", "lr_range_test_step_size", double(o_.lr_range_test_step_size));
  apply();
}
double LRRangeTest::value(int g, int64_t t) const {
  const double part = double(t) / double(o_.lr_range_test_step_size);
  return o_.lr_range_test_min_lr[g] *
         (1 + o_.lr_range_test_step_rate * (o_.lr_range_test_staircase ? std::floor(part) : part));
}

OneCycle::OneCycle(Optimizer& optimizer, Options options)
    : Schedule(optimizer),
      o_(std::move(options)),
      first_(o_.cycle_first_step_size),
      total_(first_ + o_.cycle_second_step_size.value_or(first_)) {
  check_groups("OneCycle", "cycle_min_lr", o_.cycle_min_lr);
  check_groups("OneCycle", "cycle_max_lr", o_.cycle_max_lr);
  check_positive("OneCycle", "cycle_first_step_size", double(first_));
  check_positive("OneCycle", "cycle_second_step_size", double(total_ - first_));
  LOCKSTEP_CHECK(o_.decay_step_size >= 0, "[OneCycle] expected decay_step_size >= 0, got ", o_.decay_step_size);
  if (o_.cycle_momentum) momentum_ = momentum_option("OneCycle", optimizer);
  apply();
}
double OneCycle::triangle(int64_t t) const {
  return t <= first_ ? double(t) / double(first_) : double(total_ - t) / double(total_ - first_);
}
double OneCycle::decay(int64_t t, double rate) const {
  return o_.decay_step_size == 0 ? 1 : 1 + rate * double(t - total_) / double(o_.decay_step_size);
}
double OneCycle::value(int g, int64_t t) const {
  const double low = o_.cycle_min_lr[g], high = o_.cycle_max_lr[g];
  return t <= total_ ? low + (high - low) * triangle(t) : low / decay(t, o_.decay_lr_rate);
}
double OneCycle::momentum(int, int64_t t) const {
  const double low = o_.cycle_min_mom, high = o_.cycle_max_mom;
  return t <= total_ ? high - (high - low) * triangle(t) : high * decay(t, o_.decay_mom_rate);
}

}  // namespace lockstep::optim
