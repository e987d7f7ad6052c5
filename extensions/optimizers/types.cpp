// The names of these optimizers in configuration files, with the names and defaults of DeepSpeed's options.
#include <utility>

#include "base/check.h"
#include "engine/params.h"
#include "extensions/optimizers/composed_rules.h"
#include "extensions/optimizers/fused_rules.h"
#include "extensions/optimizers/matrix_rules.h"
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

}  // namespace lockstep::engine
