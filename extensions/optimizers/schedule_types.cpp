// The names of these schedules in configuration files, with DeepSpeed's and PyTorch's options and defaults.
#include "base/check.h"
#include "engine/params.h"
#include "extensions/optimizers/schedules.h"

namespace lockstep::engine {

namespace {

/// Makes a SequentialLR or ChainedScheduler from the schedules that the param "schedulers" lists as {"type", "params"}.
Make list_schedule(Params& p) {
  const bool follows = p.type == "SequentialLR";
  data::Json list = data::Json::Array();
  std::vector<int64_t> milestones;
  p.required("schedulers", &list, anything());
  if (follows) p.required("milestones", &milestones, least(1));
  std::vector<optim::MakeSchedule> parts;
  const auto make = [=](std::vector<optim::MakeSchedule> of) {
    return [=](optim::Optimizer& optimizer) -> std::unique_ptr<optim::Schedule> {
      if (follows) return std::make_unique<optim::SequentialLR>(optimizer, of, milestones);
      return std::make_unique<optim::ChainedScheduler>(optimizer, of);
    };
  };
  p.check([&] {
    LOCKSTEP_CHECK(list.is_array(), "[", p.type, "] expected schedulers to be a list of {\"type\", \"params\"}, got ",
                   list.dump());
    for (const data::Json& part : list.as_array()) {
      const data::Json* type = part.is_object() ? part.find("type") : nullptr;
      const data::Json* params = type ? part.find("params") : nullptr;
      LOCKSTEP_CHECK(type && type->is_string(), "[", p.type, "] expected {\"type\", \"params\"} in schedulers, got ",
                     part.dump());
      parts.push_back(std::get<MakeSchedule>(
          read_named(ParamsKind::schedule, {type->as_string(), params ? *params : data::Json(data::Json::Object())})));
    }
    make(parts)(*trial_optimizer(data::Json::Object()));
  });
  return make(parts);
}

}  // namespace

std::vector<NamedType> rare_schedules() {
  using namespace optim;
  return {
      schedule_type<LRRangeTest>("LRRangeTest", "grows, to find a good rate",
                                 [](Params& p, auto& o) {
                                   p("lr_range_test_min_lr", &o.lr_range_test_min_lr, positive());
                                   p("lr_range_test_step_size", &o.lr_range_test_step_size, least(1));
                                   p("lr_range_test_step_rate", &o.lr_range_test_step_rate, least(0));
                                   p("lr_range_test_staircase", &o.lr_range_test_staircase);
                                 }),
      schedule_type<OneCycle>(
          "OneCycle", "up, down, then decay; momentum goes the other way",
          [](Params& p, auto& o) {
            p.required("cycle_min_lr", &o.cycle_min_lr, least(0)).required("cycle_max_lr", &o.cycle_max_lr, least(0));
            p("decay_lr_rate", &o.decay_lr_rate, least(0));
            p("cycle_first_step_size", &o.cycle_first_step_size, least(1));
            p("cycle_second_step_size", &o.cycle_second_step_size, least(1));
            p("decay_step_size", &o.decay_step_size, least(0))("cycle_momentum", &o.cycle_momentum);
            p("cycle_min_mom", &o.cycle_min_mom, between(0, 1))("cycle_max_mom", &o.cycle_max_mom, between(0, 1));
            p("decay_mom_rate", &o.decay_mom_rate, least(0));
            for (const char* stairs : {"cycle_first_stair_count", "cycle_second_stair_count"})
              p.without_effect(stairs, {}, "DeepSpeed does not use it either");
          }),
      schedule_type<StepLR>(
          "StepLR", "lr * gamma ^ floor(step / step_size)",
          [](Params& p, auto& o) { p.required("step_size", &o.step_size, least(1))("gamma", &o.gamma); }),
      schedule_type<MultiStepLR>(
          "MultiStepLR", "lr * gamma ^ (milestones passed)",
          [](Params& p, auto& o) { p.required("milestones", &o.milestones, least(0))("gamma", &o.gamma); }),
      schedule_type<ExponentialLR>("ExponentialLR", "lr * gamma ^ step",
                                   [](Params& p, auto& o) { p.required("gamma", &o.gamma); }),
      schedule_type<CosineAnnealingLR>(
          "CosineAnnealingLR", "a cosine from lr to eta_min over T_max steps",
          [](Params& p, auto& o) { p.required("T_max", &o.T_max, least(1))("eta_min", &o.eta_min, least(0)); }),
      schedule_type<CosineAnnealingWarmRestarts>(
          "CosineAnnealingWarmRestarts", "the same over T_0 steps, again over T_0 T_mult, ...",
          [](Params& p, auto& o) {
            p.required("T_0", &o.T_0, least(1))("T_mult", &o.T_mult, least(1))("eta_min", &o.eta_min, least(0));
          }),
      schedule_type<LinearLR>("LinearLR", "a factor that goes from start_factor to end_factor",
                              [](Params& p, auto& o) {
                                p("start_factor", &o.start_factor)("end_factor", &o.end_factor)(
                                    "total_iters", &o.total_iters, least(1));
                              }),
      schedule_type<ConstantLR>(
          "ConstantLR", "lr * factor until total_iters, then lr",
          [](Params& p, auto& o) { p("factor", &o.factor)("total_iters", &o.total_iters, least(1)); }),
      schedule_type<PolynomialLR>(
          "PolynomialLR", "lr * (1 - step / total_iters) ^ power",
          [](Params& p, auto& o) { p("total_iters", &o.total_iters, least(1))("power", &o.power); }),
      schedule_type<OneCycleLR>(
          "OneCycleLR", "PyTorch's: up to max_lr, down far below the start",
          [](Params& p, auto& o) {
            p.required("max_lr", &o.max_lr, least(0)).required("total_steps", &o.total_steps, least(1));
            p("pct_start", &o.pct_start, between(0, 1));
            p("anneal_strategy", &o.anneal_strategy, words({"cos", "linear"}))("cycle_momentum", &o.cycle_momentum);
            p("base_momentum", &o.base_momentum, between(0, 1))("max_momentum", &o.max_momentum, between(0, 1));
            p("div_factor", &o.div_factor, positive())("final_div_factor", &o.final_div_factor, positive());
            p("three_phase", &o.three_phase);
          }),
      schedule_type<CyclicLR>(
          "CyclicLR", "triangles between base_lr and max_lr; momentum goes the other way",
          [](Params& p, auto& o) {
            p.required("base_lr", &o.base_lr, least(0)).required("max_lr", &o.max_lr, least(0));
            p("step_size_up", &o.step_size_up, least(1))("step_size_down", &o.step_size_down, least(1));
            p("mode", &o.mode, words({"triangular", "triangular2", "exp_range"}))("gamma", &o.gamma);
            p("cycle_momentum", &o.cycle_momentum)("base_momentum", &o.base_momentum, between(0, 1));
            p("max_momentum", &o.max_momentum, between(0, 1));
          }),
      schedule_type<SWALR>("SWALR", "from lr to swa_lr in anneal_epochs steps, then constant",
                           [](Params& p, auto& o) {
                             p.required("swa_lr", &o.swa_lr, least(0))("anneal_epochs", &o.anneal_epochs, least(0));
                             p("anneal_strategy", &o.anneal_strategy, words({"cos", "linear"}));
                           }),
      {"ChainedScheduler", "lr times the factors of all in schedulers, a list of {type, params}", list_schedule},
      {"SequentialLR", "those in schedulers, one after another, each from its milestone on", list_schedule},
      schedule_type<ReduceLROnPlateau>(
          "ReduceLROnPlateau",
          "cut by factor when the metric given to the engine's step() has not improved for patience steps",
          [](Params& p, auto& o) {
            p("mode", &o.mode, words({"min", "max"}))("factor", &o.factor)("patience", &o.patience, least(0));
            p("threshold", &o.threshold)("threshold_mode", &o.threshold_mode, words({"rel", "abs"}));
            p("cooldown", &o.cooldown, least(0))("min_lr", &o.min_lr, least(0))("eps", &o.eps, least(0));
          }),
  };
}

}  // namespace lockstep::engine
