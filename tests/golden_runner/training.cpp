// Cases of optimizers, clipping, schedules, loss scalers and samplers.
#include <algorithm>
#include <cmath>
#include <functional>

#include "data/sampler.h"
#include "optim/clip.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::optim;

namespace {

std::pair<double, double> betas(const Case& c) {
  const Json* list = c.arg("betas");
  return list ? std::pair(list->as_array().at(0).as_number(), list->as_array().at(1).as_number())
              : std::pair(0.9, 0.999);
}

/// An optimizer of the case over `parameters`; groups, when the case has them, override options by name.
template <class Opt, class Options>
std::unique_ptr<Optimizer> grouped(const Case& c, const std::vector<Variable>& parameters, const Options& options) {
  const Json* groups = c.json().find("groups");
  if (!groups) return std::make_unique<Opt>(parameters, options);
  std::vector<typename Opt::Group> list;
  for (const Json& group : groups->as_array()) {
    typename Opt::Group g{{}, options};
    for (const Json& index : group.at("params").as_array()) g.parameters.push_back(parameters.at(index.as_int()));
    for (const auto& [key, value] : group.as_object())
      if (key != "params") *g.options.by_name().at(key) = value.as_number();
    list.push_back(g);
  }
  return std::make_unique<Opt>(list);
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& kind, const Case& c, const std::vector<Variable>& p) {
  const auto [beta1, beta2] = betas(c);
  const double lr = c.number("lr", 1e-3), decay = c.number("weight_decay", 0);
  const bool maximize = c.flag("maximize", false);
  const bool deepspeed_adamw = kind == "DeepSpeedCPUAdam" && c.flag("adamw_mode", true);
  if (kind == "SGD") {
    return grouped<SGD>(c, p,
                        SGDOptions{.lr = lr,
                                   .momentum = c.number("momentum", 0),
                                   .dampening = c.number("dampening", 0),
                                   .weight_decay = decay,
                                   .nesterov = c.flag("nesterov", false),
                                   .maximize = maximize});
  }
  if (kind == "AdamW" || deepspeed_adamw) {
    return grouped<AdamW>(c, p,
                          AdamWOptions{.lr = lr,
                                       .beta1 = beta1,
                                       .beta2 = beta2,
                                       .eps = c.number("eps", 1e-8),
                                       .weight_decay = c.number("weight_decay", kind == "AdamW" ? 0.01 : 0),
                                       .amsgrad = c.flag("amsgrad", false),
                                       .maximize = maximize,
                                       .bias_correction = c.flag("bias_correction", true)});
  }
  if (kind == "Adam" || kind == "DeepSpeedCPUAdam") {
    return grouped<Adam>(c, p,
                         AdamOptions{.lr = lr,
                                     .beta1 = beta1,
                                     .beta2 = beta2,
                                     .eps = c.number("eps", 1e-8),
                                     .weight_decay = decay,
                                     .amsgrad = c.flag("amsgrad", false),
                                     .maximize = maximize,
                                     .bias_correction = c.flag("bias_correction", true)});
  }
  if (kind == "RMSprop") {
    return grouped<RMSprop>(c, p,
                            RMSpropOptions{.lr = lr,
                                           .alpha = c.number("alpha", 0.99),
                                           .eps = c.number("eps", 1e-8),
                                           .weight_decay = decay,
                                           .momentum = c.number("momentum", 0),
                                           .centered = c.flag("centered", false),
                                           .maximize = maximize});
  }
  if (kind == "Adagrad" || kind == "DeepSpeedCPUAdagrad") {
    return grouped<Adagrad>(c, p,
                            AdagradOptions{.lr = lr,
                                           .lr_decay = c.number("lr_decay", 0),
                                           .weight_decay = decay,
                                           .initial_accumulator = c.number("initial_accumulator_value", 0),
                                           .eps = c.number("eps", 1e-10),
                                           .maximize = maximize});
  }
  if (kind == "Lion" || kind == "DeepSpeedCPULion") {
    return grouped<Lion>(c, p,
                         LionOptions{.lr = lr,
                                     .beta1 = beta1,
                                     .beta2 = c.arg("betas") ? beta2 : 0.99,
                                     .weight_decay = decay,
                                     .maximize = maximize});
  }
  fail("unknown optimizer '" + kind + "'");
}

}  // namespace

void run_optimizer(const Case& c, Report& report) {
  std::vector<Variable> parameters;
  std::vector<Tensor> grads, paths;
  for (int i = 0; c.has_shared(str("common/param", i)); ++i) {
    parameters.emplace_back(c.shared(str("common/param", i)).clone(), true);
    grads.push_back(c.shared(str("common/grad", i)));
    paths.push_back(empty(grads.back().shape()));
  }
  const auto optimizer = make_optimizer(c.json().at("optimizer").as_string(), c, parameters);
  for (int64_t step = 0; step < grads.at(0).size(0); ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].grad() = grads[i][step].clone();
    optimizer->step();
    for (size_t i = 0; i < parameters.size(); ++i) paths[i][step].copy_(parameters[i].tensor());
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (c.has(str("traj", i))) report.compare(str("traj", i), paths[i], c.tensor(str("traj", i)));
    const std::string prefix = str("state", i, "/");
    for (const std::string& what : c.names(prefix)) {
      const auto& tensors = optimizer->state_of(parameters[i]).tensors;
      const std::string key = what.substr(prefix.size());
      const auto found = tensors.find(tensors.count(key)    ? key
                                      : key == "exp_avg_sq" ? "sum"
                                                            : key);  // DeepSpeed's name of Adagrad's sum
      if (found == tensors.end() && sum(abs(c.tensor(what))).item() == 0) continue;  // kept there but never used
      if (found == tensors.end()) report.wrong("no state " + what);
      else report.compare(what, found->second, c.tensor(what));
    }
  }
}

void run_clip(const Case& c, Report& report) {
  std::vector<Variable> parameters;
  for (int i = 0; c.has(str("in", i)); ++i) {
    parameters.emplace_back(zeros_like(c.tensor(str("in", i))), true);
    parameters.back().grad() = c.tensor(str("in", i)).clone();
  }
  if (c.arg("clip_value")) {
    clip_grad_value(parameters, c.number("clip_value"));
  } else {
    const double total = clip_grad_norm(parameters, c.number("max_norm"), c.number("norm_type", 2));
    report.compare("total_norm", full({}, total), c.tensor("total_norm"));
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    report.compare(str("out", i), parameters[i].grad(), c.tensor(str("out", i)));
}

namespace {

PerGroup per_group(const Case& c, const std::string& key, double otherwise) {
  const Json* value = c.arg(key);
  if (!value) return otherwise;
  if (value->is_number()) return value->as_number();
  std::vector<double> list;
  for (const Json& v : value->as_array()) list.push_back(v.as_number());
  return list;
}
std::optional<PerGroup> maybe_per_group(const Case& c, const std::string& key) {
  return c.arg(key) ? std::optional<PerGroup>(per_group(c, key, 0)) : std::nullopt;
}

std::unique_ptr<Schedule> make_schedule(const std::string& kind, const Case& c, Optimizer& o) {
  const Warmup warmup = parse_warmup(c.text("warmup_type", "log"));
  const int64_t warmup_steps = c.integer("warmup_num_steps", 1000);
  if (kind == "WarmupLR")
    return std::make_unique<WarmupLR>(o, WarmupLR::Options{per_group(c, "warmup_min_lr", 0),
                                                           maybe_per_group(c, "warmup_max_lr"), warmup_steps, warmup});
  if (kind == "WarmupDecayLR") {
    return std::make_unique<WarmupDecayLR>(
        o, WarmupDecayLR::Options{c.integer("total_num_steps"), per_group(c, "warmup_min_lr", 0),
                                  maybe_per_group(c, "warmup_max_lr"), warmup_steps, warmup});
  }
  if (kind == "WarmupCosineLR") {
    return std::make_unique<WarmupCosineLR>(
        o, WarmupCosineLR::Options{c.integer("total_num_steps"), c.number("warmup_min_ratio", 0), warmup_steps,
                                   c.number("cos_min_ratio", 1e-4), warmup});
  }
  if (kind == "LRRangeTest") {
    return std::make_unique<LRRangeTest>(
        o, LRRangeTest::Options{per_group(c, "lr_range_test_min_lr", 1e-3), c.integer("lr_range_test_step_size", 2000),
                                c.number("lr_range_test_step_rate", 1), c.flag("lr_range_test_staircase", false)});
  }
  if (kind == "OneCycle") {
    return std::make_unique<OneCycle>(
        o, OneCycle::Options{.cycle_min_lr = per_group(c, "cycle_min_lr", 0),
                             .cycle_max_lr = per_group(c, "cycle_max_lr", 0),
                             .decay_lr_rate = c.number("decay_lr_rate", 0),
                             .cycle_first_step_size = c.integer("cycle_first_step_size", 2000),
                             .cycle_second_step_size = c.arg("cycle_second_step_size")
                                                           ? std::optional(c.integer("cycle_second_step_size"))
                                                           : std::nullopt,
                             .decay_step_size = c.integer("decay_step_size", 0),
                             .cycle_momentum = c.flag("cycle_momentum", true),
                             .cycle_min_mom = c.number("cycle_min_mom", 0.8),
                             .cycle_max_mom = c.number("cycle_max_mom", 0.9),
                             .decay_mom_rate = c.number("decay_mom_rate", 0)});
  }
  if (kind == "StepLR")
    return std::make_unique<StepLR>(o, StepLR::Options{c.integer("step_size"), c.number("gamma", 0.1)});
  if (kind == "MultiStepLR") {
    const Dims m = c.dims("milestones");
    return std::make_unique<MultiStepLR>(o, MultiStepLR::Options{{m.begin(), m.end()}, c.number("gamma", 0.1)});
  }
  if (kind == "ExponentialLR") return std::make_unique<ExponentialLR>(o, ExponentialLR::Options{c.number("gamma")});
  if (kind == "CosineAnnealingLR")
    return std::make_unique<CosineAnnealingLR>(o,
                                               CosineAnnealingLR::Options{c.integer("T_max"), c.number("eta_min", 0)});
  if (kind == "CosineAnnealingWarmRestarts") {
    return std::make_unique<CosineAnnealingWarmRestarts>(
        o, CosineAnnealingWarmRestarts::Options{c.integer("T_0"), c.integer("T_mult", 1), c.number("eta_min", 0)});
  }
  if (kind == "LinearLR")
    return std::make_unique<LinearLR>(o, LinearLR::Options{c.number("start_factor", 1.0 / 3), c.number("end_factor", 1),
                                                           c.integer("total_iters", 5)});
  if (kind == "ConstantLR")
    return std::make_unique<ConstantLR>(o,
                                        ConstantLR::Options{c.number("factor", 1.0 / 3), c.integer("total_iters", 5)});
  if (kind == "PolynomialLR")
    return std::make_unique<PolynomialLR>(o, PolynomialLR::Options{c.integer("total_iters", 5), c.number("power", 1)});
  if (kind == "OneCycleLR") {
    return std::make_unique<OneCycleLR>(o, OneCycleLR::Options{.max_lr = per_group(c, "max_lr", 0),
                                                               .total_steps = c.integer("total_steps"),
                                                               .pct_start = c.number("pct_start", 0.3),
                                                               .anneal_strategy = c.text("anneal_strategy", "cos"),
                                                               .cycle_momentum = c.flag("cycle_momentum", true),
                                                               .base_momentum = c.number("base_momentum", 0.85),
                                                               .max_momentum = c.number("max_momentum", 0.95),
                                                               .div_factor = c.number("div_factor", 25),
                                                               .final_div_factor = c.number("final_div_factor", 1e4),
                                                               .three_phase = c.flag("three_phase", false)});
  }
  if (kind == "ReduceLROnPlateau") {
    return std::make_unique<ReduceLROnPlateau>(
        o, ReduceLROnPlateau::Options{.mode = c.text("mode", "min"),
                                      .factor = c.number("factor", 0.1),
                                      .patience = c.integer("patience", 10),
                                      .threshold = c.number("threshold", 1e-4),
                                      .threshold_mode = c.text("threshold_mode", "rel"),
                                      .cooldown = c.integer("cooldown", 0),
                                      .min_lr = per_group(c, "min_lr", 0),
                                      .eps = c.number("eps", 1e-8)});
  }
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

void run_scaler(const Case& c, Report& report) {
  const auto overflow = c.tensor("overflow").to_vector<double>();
  std::vector<double> scales;
  if (c.json().at("what").as_string().find("GradScaler") != std::string::npos) {
    GradScaler scaler({.init_scale = c.number("init_scale", 65536),
                       .growth_factor = c.number("growth_factor", 2),
                       .backoff_factor = c.number("backoff_factor", 0.5),
                       .growth_interval = c.integer("growth_interval", 2000)});
    Variable p(Tensor::from({1.f, -2.f, 0.5f}), true);
    SGD optimizer({p}, {.lr = 0.1});
    std::vector<double> trackers;
    Tensor path = empty({int64_t(overflow.size()), 3});
    scales.push_back(scaler.scale_value());
    for (size_t k = 0; k < overflow.size(); ++k) {
      const float s = float(scaler.scale_value());
      p.grad() = Tensor::from({0.1f * s, 0.2f * s, overflow[k] != 0 ? INFINITY : -0.3f * s});
      scaler.step(optimizer);
      scaler.update();
      scales.push_back(scaler.scale_value());
      trackers.push_back(double(scaler.growth_tracker()));
      path[int64_t(k)].copy_(p.tensor());
    }
    report.compare("tracker", Tensor::from(trackers, {int64_t(trackers.size())}).to(c.tensor("tracker").dtype()),
                   c.tensor("tracker"));
    report.compare("param", path, c.tensor("param"));
    report.compare("scale", Tensor::from(scales, {int64_t(scales.size())}).to(f32), c.tensor("scale"));
    return;
  }
  DynamicLossScaler scaler({.init_scale = c.number("init_scale"),
                            .scale_factor = c.number("scale_factor", 2),
                            .scale_window = c.integer("scale_window", 1000),
                            .min_scale = c.number("min_scale", 1),
                            .hysteresis = c.integer("delayed_shift", 1),
                            .consecutive_hysteresis = c.flag("consecutive_hysteresis", false),
                            .raise_error_at_min_scale = c.flag("raise_error_at_min_scale", true)});
  // The trace ends where DeepSpeed's own call raised.
  const int64_t rows = c.tensor("scale").numel();
  std::vector<double> hysteresis;
  for (int64_t k = 0; k < rows; ++k) {
    if (k > 0) scaler.update(overflow.at(k - 1) != 0);
    scales.push_back(scaler.scale());
    hysteresis.push_back(double(scaler.hysteresis()));
  }
  report.compare("scale", Tensor::from(scales, {rows}).to(f32), c.tensor("scale"));
  report.compare("hysteresis", Tensor::from(hysteresis, {rows}).to(c.tensor("hysteresis").dtype()),
                 c.tensor("hysteresis"));
}

void run_sampler(const Case& c, Report& report) {
  const Json& j = c.json();
  const int64_t n = j.at("n").as_int(), world = j.at("world").as_int();
  const bool shuffle = j.find("shuffle") && j.at("shuffle").as_bool();
  LOCKSTEP_CHECK(!shuffle, "shuffled cases follow another library's random numbers and cannot be compared");
  const Tensor& expected = c.tensor("indices");
  Tensor ours = empty(expected.shape(), {.dtype = i64});
  for (int64_t rank = 0; rank < world; ++rank) {
    data::DistributedSampler sampler(n, world, rank, {.shuffle = false, .drop_last = j.at("drop_last").as_bool()});
    sampler.set_epoch(j.find("epoch") ? j.at("epoch").as_int() : 0);
    const auto indices = sampler.indices();
    if (int64_t(indices.size()) != expected.size(1))
      return report.wrong(str("rank ", rank, " has ", indices.size(), " indices, not ", expected.size(1)));
    ours[rank].copy_(Tensor::from(indices, {int64_t(indices.size())}));
  }
  report.compare("indices", ours, expected);
}

}  // namespace golden
