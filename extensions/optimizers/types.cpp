// The names of these optimizers and schedules in configuration files, with DeepSpeed's and PyTorch's options and
// defaults.
#include <utility>

#include "base/check.h"
#include "engine/params.h"
#include "extensions/optimizers/composed_rules.h"
#include "extensions/optimizers/fused_rules.h"
#include "extensions/optimizers/matrix_rules.h"
#include "extensions/optimizers/schedules.h"
#include "optim/optim.h"

namespace lockstep::engine {

namespace {

/// NamedType::reasons of optimizers whose update needs whole matrices.
std::vector<std::string> needs_matrices(const Config&, const parallel::Plan& plan, const std::string& called) {
  if (plan.tp <= 1) return {};
  return {str(called, " needs whole matrices, which tp", plan.tp, " shards; leave tp out, or use AdamW")};
}

// --- Muon for matrices, AdamW for the rest ---

struct AdamChoice : optim::AdamOptions {
  bool adam_w_mode = true;
};

std::unique_ptr<optim::Optimizer> make_adam(std::vector<Variable> parameters, const AdamChoice& o) {
  if (!o.adam_w_mode) return std::make_unique<optim::Adam>(std::move(parameters), o);
  return std::make_unique<optim::AdamW>(
      std::move(parameters),
      optim::AdamWOptions{
          .lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay});
}

/// True if Muon trains the parameter: for all matrices except token embeddings and output heads. A matrix counts as an
/// embedding or head if is_table is true or, as in DeepSpeed, if its name contains "embed" or "head.".
bool is_for_muon(const nn::NamedParameter& p) {
  const auto called = [&](const char* name) { return p.name.find(name) != p.name.npos; };
  return p.variable.dim() == 2 && !p.is_table && !called("embed") && !called("head.");
}

Make muon(Params& p) {
  optim::MuonOptions matrix{.lr = 1e-3, .weight_decay = 0};  // DeepSpeed's defaults
  AdamChoice other;
  std::optional<double> muon_lr, adam_lr;
  std::string method = "gram";
  p("lr", &matrix.lr)("momentum", &matrix.momentum)("weight_decay", &matrix.weight_decay);
  p("nesterov", &matrix.nesterov)("muon_lr", &muon_lr, least(0))("adam_lr", &adam_lr, least(0));
  p("betas", Pair{&other.beta1, &other.beta2})("eps", &other.eps)("adam_w_mode", &other.adam_w_mode);
  p("ns_method", &method, words({"gram", "standard"}));
  p("adjust_lr_fn", &matrix.adjust_lr_fn, words({"original", "match_rms_adamw"}));
  p.without_effect("torch_adam", false, "there is one implementation");
  p.fixed("per_head_muon", false, "attention is not cut by heads");
  other.lr = matrix.lr, other.weight_decay = matrix.weight_decay;
  p.check([&] {
    optim::check_options("Muon", matrix);
    optim::check_options("Muon", other);
  });
  if (p.problems.empty() && p.given.find("ns_method") && method == "gram")
    p.warnings.push_back(
        "optimizer.params.ns_method: gram runs as standard, the same up to rounding; write standard to silence this");
  matrix.lr = muon_lr.value_or(matrix.lr), other.lr = adam_lr.value_or(other.lr);
  return [=](const NamedParameters& parameters, dist::ProcessGroup*) {
    std::vector<Variable> matrices, rest;
    for (const auto& one : parameters) (is_for_muon(one) ? matrices : rest).push_back(one.variable);
    Optimizers made;
    if (!matrices.empty()) made.push_back(std::make_unique<optim::Muon>(std::move(matrices), matrix));
    if (!rest.empty()) made.push_back(make_adam(std::move(rest), other));
    LOCKSTEP_CHECK(!made.empty(), "[Muon] expected at least one parameter, got none; pass those that require grad");
    return made;
  };
}

/// Adds the options that PyTorch's variants of Adam share.
template <class O> Params& name_adam(Params& p, O& o) {
  p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("eps", &o.eps);
  return p("weight_decay", &o.weight_decay)("maximize", &o.maximize);
}

std::vector<std::string> adafactor_reasons(const Config& c, const parallel::Plan& plan, const std::string& called) {
  std::vector<std::string> reasons = needs_matrices(c, plan, called);
  if (c.zero_optimization.offload_optimizer.device == zero::Offload::nvme)
    reasons.insert(reasons.begin(), called +
                                        " keeps one state per row and column, but offload to nvme needs one per "
                                        "element; offload to cpu, or use AdamW");
  return reasons;
}

std::vector<std::string> lbfgs_reasons(const Config&, const parallel::Plan&, const std::string& called) {
  return {called +
          " evaluates the loss many times a step, which an engine does not; call its step(loss) in a loop of your own, "
          "or use AdamW"};
}

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

std::vector<NamedType> rare_optimizers() {
  using namespace optim;
  return {
      optimizer_type<LAMB>(
          "Lamb", "layer-wise rates", LAMBOptions{.eps = 1e-8},
          [](Params& p, auto& o) {
            p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("eps", &o.eps);
            p("weight_decay", &o.weight_decay)("bias_correction", &o.bias_correction);
            p("max_coeff", &o.max_trust)("min_coeff", &o.min_trust)("maximize", &o.maximize);
            p.fixed("amsgrad", false, "LAMB has none");
            p.fixed("eps_inside_sqrt", false, "eps is added to the root");
          },
          needs_matrices),
      optimizer_type<Lion>("Lion", "the sign of momentum", LionOptions{.lr = 1e-3},
                           [](Params& p, auto& o) {
                             p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2});
                             p("weight_decay", &o.weight_decay)("maximize", &o.maximize);
                           }),
      optimizer_type<Adagrad>("Adagrad", "", AdagradOptions{},
                              [](Params& p, auto& o) {
                                p("lr", &o.lr)("lr_decay", &o.lr_decay)("eps", &o.eps)("weight_decay", &o.weight_decay);
                                p("initial_accumulator_value", &o.initial_accumulator)("maximize", &o.maximize);
                              }),
      optimizer_type<RMSprop>("RMSprop", "", RMSpropOptions{},
                              [](Params& p, auto& o) {
                                p("lr", &o.lr)("alpha", &o.alpha)("eps", &o.eps)("weight_decay", &o.weight_decay);
                                p("momentum", &o.momentum)("centered", &o.centered)("maximize", &o.maximize);
                              }),
      optimizer_type<NAdam>("NAdam", "Adam with Nesterov's momentum", NAdamOptions{},
                            [](Params& p, auto& o) {
                              name_adam(p, o)("momentum_decay", &o.momentum_decay);
                              p("decoupled_weight_decay", &o.decoupled_weight_decay);
                            }),
      optimizer_type<RAdam>(
          "RAdam", "Adam with its first steps rectified", RAdamOptions{},
          [](Params& p, auto& o) { name_adam(p, o)("decoupled_weight_decay", &o.decoupled_weight_decay); }),
      optimizer_type<Adamax>("Adamax", "Adam with the largest gradient in place of the second moment", AdamaxOptions{},
                             [](Params& p, auto& o) { name_adam(p, o); }),
      optimizer_type<Adadelta>("Adadelta", "steps as long as those before them", AdadeltaOptions{},
                               [](Params& p, auto& o) {
                                 p("lr", &o.lr)("rho", &o.rho)("eps", &o.eps);
                                 p("weight_decay", &o.weight_decay)("maximize", &o.maximize);
                               }),
      optimizer_type<ASGD>("ASGD", "SGD with a falling rate, and an average from step t0 on", ASGDOptions{},
                           [](Params& p, auto& o) {
                             p("lr", &o.lr)("lambd", &o.lambd)("alpha", &o.alpha)("t0", &o.t0);
                             p("weight_decay", &o.weight_decay)("maximize", &o.maximize);
                           }),
      optimizer_type<Rprop>("Rprop", "by the sign of gradients of all data", RpropOptions{},
                            [](Params& p, auto& o) {
                              p("lr", &o.lr)("etas", Pair{&o.eta_minus, &o.eta_plus});
                              p("step_sizes", Pair{&o.step_min, &o.step_max})("maximize", &o.maximize);
                            }),
      optimizer_type<Adafactor>(
          "Adafactor", "second moments of rows and columns", AdafactorOptions{},
          [](Params& p, auto& o) {
            p("lr", &o.lr)("beta2_decay", &o.beta2_decay)("eps", Pair{&o.eps1, &o.eps2});
            p("d", &o.d)("weight_decay", &o.weight_decay)("maximize", &o.maximize);
          },
          adafactor_reasons),
      optimizer_type<Sophia>("Sophia", "momentum over the Hessian's diagonal, from every tenth gradient",
                             SophiaOptions{},
                             [](Params& p, auto& o) {
                               p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("rho", &o.rho);
                               p("weight_decay", &o.weight_decay)("batch", &o.batch, least(1));
                               p("hessian_interval", &o.hessian_interval, least(1))("maximize", &o.maximize);
                             }),
      optimizer_type<AdamWScheduleFree>("AdamWScheduleFree", "AdamW at a constant rate, with an average to evaluate",
                                        AdamWScheduleFreeOptions{},
                                        [](Params& p, auto& o) {
                                          name_adam(p, o)("warmup_steps", &o.warmup_steps, least(0))("r", &o.r);
                                          p("weight_lr_power", &o.weight_lr_power);
                                        }),
      {"Muon", "matrices; embeddings, heads and all else go to AdamW (Adam when adam_w_mode is false)", muon,
       needs_matrices},
      {"LBFGS", "", nullptr, lbfgs_reasons},
  };
}

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
