// Golden cases of learning-rate schedules: builds the schedule that a case names, steps it, and compares the learning
// rates and momenta.
#include <cmath>

#include "optim/average.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::optim;

namespace {

PerGroup per_group(const Case& c, const std::string& key, double default_value) {
  const Json* value = c.arg(key);
  if (!value) return default_value;
  if (value->is_number()) return value->as_number();
  std::vector<double> list;
  for (const Json& v : value->as_array()) list.push_back(v.as_number());
  return list;
}
std::optional<PerGroup> maybe_per_group(const Case& c, const std::string& key) {
  return c.arg(key) ? std::optional<PerGroup>(per_group(c, key, 0)) : std::nullopt;
}

/// Schedules from a list of {"type": ..., "params": {...}}. In a list, only the types below are supported.
std::vector<MakeSchedule> schedule_list(const Case& c) {
  std::vector<MakeSchedule> list;
  for (const Json& part : c.arg("schedulers")->as_array()) {
    const std::string type = part.at("type").as_string();
    const auto number = [&](const char* key, double default_value) {
      const Json* value = part.at("params").find(key);
      return value ? value->as_number() : default_value;
    };
    const auto count = int64_t(number("total_iters", 5));
    if (type == "ConstantLR") list.push_back(scheduled<ConstantLR>({number("factor", 1.0 / 3), count}));
    else if (type == "LinearLR") list.push_back(scheduled<LinearLR>({number("start_factor", 1.0 / 3), 1, count}));
    else if (type == "ExponentialLR") list.push_back(scheduled<ExponentialLR>({number("gamma", 0)}));
    else if (type == "StepLR") list.push_back(scheduled<StepLR>({int64_t(number("step_size", 0)), 0.1}));
    else if (type == "CosineAnnealingLR")
      list.push_back(scheduled<CosineAnnealingLR>({int64_t(number("T_max", 0)), number("eta_min", 0)}));
    else fail("unknown schedule '" + type + "' in a list");
  }
  return list;
}

template <class S> std::unique_ptr<Schedule> make(Optimizer& o, const typename S::Options& options) {
  return std::make_unique<S>(o, options);
}

std::unique_ptr<Schedule> make_schedule(const std::string& kind, const Case& c, Optimizer& o) {
  if (kind == "ChainedScheduler") return std::make_unique<ChainedScheduler>(o, schedule_list(c));
  if (kind == "SequentialLR") {
    const Dims m = c.dims("milestones");
    return std::make_unique<SequentialLR>(o, schedule_list(c), std::vector<int64_t>{m.begin(), m.end()});
  }
  if (kind == "SWALR")
    return make<SWALR>(o,
                       {per_group(c, "swa_lr", 0), c.integer("anneal_epochs", 10), c.text("anneal_strategy", "cos")});
  if (kind == "CyclicLR")
    return make<CyclicLR>(
        o, {.base_lr = per_group(c, "base_lr", 0),
            .max_lr = per_group(c, "max_lr", 0),
            .step_size_up = c.integer("step_size_up", 2000),
            .step_size_down = c.arg("step_size_down") ? std::optional(c.integer("step_size_down")) : std::nullopt,
            .mode = c.text("mode", "triangular"),
            .gamma = c.number("gamma", 1),
            .cycle_momentum = c.flag("cycle_momentum", true),
            .base_momentum = per_group(c, "base_momentum", 0.8),
            .max_momentum = per_group(c, "max_momentum", 0.9)});
  const Warmup warmup = parse_warmup(c.text("warmup_type", "log"));
  const int64_t warmup_steps = c.integer("warmup_num_steps", 1000);
  if (kind == "WarmupLR")
    return make<WarmupLR>(
        o, {per_group(c, "warmup_min_lr", 0), maybe_per_group(c, "warmup_max_lr"), warmup_steps, warmup});
  if (kind == "WarmupDecayLR")
    return make<WarmupDecayLR>(o, {c.integer("total_num_steps"), per_group(c, "warmup_min_lr", 0),
                                   maybe_per_group(c, "warmup_max_lr"), warmup_steps, warmup});
  if (kind == "WarmupCosineLR")
    return make<WarmupCosineLR>(o, {c.integer("total_num_steps"), c.number("warmup_min_ratio", 0), warmup_steps,
                                    c.number("cos_min_ratio", 1e-4), warmup});
  if (kind == "LRRangeTest")
    return make<LRRangeTest>(o, {per_group(c, "lr_range_test_min_lr", 1e-3), c.integer("lr_range_test_step_size", 2000),
                                 c.number("lr_range_test_step_rate", 1), c.flag("lr_range_test_staircase", false)});
  if (kind == "OneCycle")
    return make<OneCycle>(
        o, {.cycle_min_lr = per_group(c, "cycle_min_lr", 0),
            .cycle_max_lr = per_group(c, "cycle_max_lr", 0),
            .decay_lr_rate = c.number("decay_lr_rate", 0),
            .cycle_first_step_size = c.integer("cycle_first_step_size", 2000),
            .cycle_second_step_size =
                c.arg("cycle_second_step_size") ? std::optional(c.integer("cycle_second_step_size")) : std::nullopt,
            .decay_step_size = c.integer("decay_step_size", 0),
            .cycle_momentum = c.flag("cycle_momentum", true),
            .cycle_min_mom = c.number("cycle_min_mom", 0.8),
            .cycle_max_mom = c.number("cycle_max_mom", 0.9),
            .decay_mom_rate = c.number("decay_mom_rate", 0)});
  if (kind == "StepLR") return make<StepLR>(o, {c.integer("step_size"), c.number("gamma", 0.1)});
  if (kind == "MultiStepLR") {
    const Dims m = c.dims("milestones");
    return make<MultiStepLR>(o, {{m.begin(), m.end()}, c.number("gamma", 0.1)});
  }
  if (kind == "ExponentialLR") return make<ExponentialLR>(o, {c.number("gamma")});
  if (kind == "CosineAnnealingLR") return make<CosineAnnealingLR>(o, {c.integer("T_max"), c.number("eta_min", 0)});
  if (kind == "CosineAnnealingWarmRestarts")
    return make<CosineAnnealingWarmRestarts>(o, {c.integer("T_0"), c.integer("T_mult", 1), c.number("eta_min", 0)});
  if (kind == "LinearLR")
    return make<LinearLR>(o,
                          {c.number("start_factor", 1.0 / 3), c.number("end_factor", 1), c.integer("total_iters", 5)});
  if (kind == "ConstantLR") return make<ConstantLR>(o, {c.number("factor", 1.0 / 3), c.integer("total_iters", 5)});
  if (kind == "PolynomialLR") return make<PolynomialLR>(o, {c.integer("total_iters", 5), c.number("power", 1)});
  if (kind == "OneCycleLR")
    return make<OneCycleLR>(o, {.max_lr = per_group(c, "max_lr", 0),
                                .total_steps = c.integer("total_steps"),
                                .pct_start = c.number("pct_start", 0.3),
                                .anneal_strategy = c.text("anneal_strategy", "cos"),
                                .cycle_momentum = c.flag("cycle_momentum", true),
                                .base_momentum = c.number("base_momentum", 0.85),
                                .max_momentum = c.number("max_momentum", 0.95),
                                .div_factor = c.number("div_factor", 25),
                                .final_div_factor = c.number("final_div_factor", 1e4),
                                .three_phase = c.flag("three_phase", false)});
  if (kind == "ReduceLROnPlateau")
    return make<ReduceLROnPlateau>(o, {.mode = c.text("mode", "min"),
                                       .factor = c.number("factor", 0.1),
                                       .patience = c.integer("patience", 10),
                                       .threshold = c.number("threshold", 1e-4),
                                       .threshold_mode = c.text("threshold_mode", "rel"),
                                       .cooldown = c.integer("cooldown", 0),
                                       .min_lr = per_group(c, "min_lr", 0),
                                       .eps = c.number("eps", 1e-8)});
  fail("unknown schedule '" + kind + "'");
}

}  // namespace

void run_schedule(const Case& c, Report& report) {
  const auto& base = c.json().at("base_lrs").as_array();
  std::vector<SGD::Group> groups;
  for (const Json& lr : base)
    groups.push_back({{Variable(zeros({1}), true)}, SGDOptions{.lr = lr.as_number(), .momentum = 0.9}});
  SGD optimizer(groups);
  const auto schedule = make_schedule(c.json().at("schedule").as_string(), c, optimizer);
  const int64_t steps = c.json().at("steps").as_int(), count = int64_t(base.size());
  Tensor rates = empty({steps + 1, count}), momenta = empty({steps + 1, count});
  for (int64_t k = 0; k <= steps; ++k) {
    if (k > 0 && c.has("metric")) schedule->step(c.tensor("metric").to_vector<double>().at(k - 1));
    else if (k > 0) schedule->step();
    for (int g = 0; g < count; ++g) {
      rates[k][g].fill_(optimizer.lr(g));
      momenta[k][g].fill_(optimizer.get(g, "momentum"));
      if (const Json* exact = c.json().find("lr_exact")) {
        const double want = exact->as_array().at(k).as_array().at(g).as_number(), got = optimizer.lr(g);
        if (std::abs(got - want) > 1e-9 * std::max(std::abs(want), 1e-3))
          report.wrong(str("lr[", k, "][", g, "] is ", got, ", not ", want));
      }
    }
  }
  report.compare("lr", rates, c.tensor("lr"));
  if (c.has("momentum")) report.compare("momentum", momenta, c.tensor("momentum"));
}

}  // namespace golden
