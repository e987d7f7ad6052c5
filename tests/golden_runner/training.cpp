// Cases of optimizers, clipping, loss scalers and samplers.
#include <cmath>

#include "data/sampler.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::optim;

namespace {

std::unique_ptr<Optimizer> make_optimizer(const std::string& kind, const Case& c, const std::vector<Variable>& p) {
  if (kind == "SGD") return optimizer_of<SGD, SGDOptions>(c, p);
  if (kind == "Adam") return optimizer_of<Adam, AdamOptions>(c, p);
  if (kind == "AdamW") return optimizer_of<AdamW, AdamWOptions>(c, p);
  if (kind == "DeepSpeedCPUAdam" && c.flag("adamw_mode", true))
    return optimizer_of<AdamW>(c, p, AdamWOptions{.weight_decay = 0});
  if (kind == "DeepSpeedCPUAdam") return optimizer_of<Adam, AdamOptions>(c, p);
  const auto& more = of_extensions().optimizers;
  LOCKSTEP_CHECK(more.count(kind), "unknown optimizer '", kind, "'");
  return more.at(kind)(c, p);
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
      // DeepSpeed calls Adagrad's sum exp_avg_sq.
      const auto found = tensors.find(key == "exp_avg_sq" && !tensors.count(key) ? "sum" : key);
      // DeepSpeed also keeps states that it does not use.
      if (found == tensors.end() && sum(abs(c.tensor(what))).item() == 0) continue;
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
  // The trace ends at the step at which DeepSpeed raised.
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
