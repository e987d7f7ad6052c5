// Optimizers with DeepSpeed's names and defaults: an option that a file leaves out has the same value as in DeepSpeed.
#include "engine/params.h"
#include "optim/optim.h"

namespace lockstep::engine {

namespace {

template <class Class, class O, class... More>
void add(Optimizers& to, std::vector<Variable> parameters, const O& options, More... more) {
  to.push_back(std::make_unique<Class>(std::move(parameters), options, more...));
}

// --- Adam and AdamW differ in one switch ---

struct AdamChoice : optim::AdamOptions {
  bool adam_w_mode = true;
};

void add_adam(Optimizers& to, const AdamChoice& o, std::vector<Variable> parameters) {
  if (!o.adam_w_mode) return add<optim::Adam, optim::AdamOptions>(to, std::move(parameters), o);
  add<optim::AdamW>(to, std::move(parameters),
                    optim::AdamWOptions{.lr = o.lr,
                                        .beta1 = o.beta1,
                                        .beta2 = o.beta2,
                                        .eps = o.eps,
                                        .weight_decay = o.weight_decay,
                                        .amsgrad = o.amsgrad,
                                        .maximize = o.maximize,
                                        .bias_correction = o.bias_correction});
}

Make adam(Params& p) {
  AdamChoice o;
  p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("eps", &o.eps)("weight_decay", &o.weight_decay);
  p("bias_correction", &o.bias_correction)("amsgrad", &o.amsgrad)("maximize", &o.maximize);
  if (p.type == "AdamW") p.fixed("adam_w_mode", true, "AdamW always decouples weight decay");
  else p("adam_w_mode", &o.adam_w_mode);
  for (const char* same : {"torch_adam", "fused", "foreach", "capturable", "differentiable"})
    p.without_effect(same, false, "there is one implementation");
  p.fixed("fp32_optimizer_states", true, "optimizer state is f32");
  p.check([&] { optim::check_options(p.type.c_str(), o); });
  if (p.problems.empty() && p.type == "Adam" && o.weight_decay != 0 && !p.given.find("adam_w_mode"))
    p.warnings.push_back(
        "optimizer.type: Adam decays weights as AdamW does, as in DeepSpeed; for PyTorch's Adam, which adds "
        "weight_decay to the gradient, set adam_w_mode to false");
  return [=](const NamedParameters& parameters, dist::ProcessGroup*) {
    Optimizers made;
    add_adam(made, o, variables(parameters));
    return made;
  };
}

}  // namespace

const std::vector<NamedType>& optimizer_types() {
  static const std::vector<NamedType> types = [] {
    std::vector<NamedType> all = {
        {"AdamW", "decoupled weight decay", adam},
        {"Adam", "the same, as in DeepSpeed; adam_w_mode false adds weight decay to the gradient", adam},
        {"FusedAdam", "Adam or AdamW, as adam_w_mode says", adam},
        {"CPUAdam", "the same", adam},
        {"DeepSpeedCPUAdam", "the same", adam},
        optimizer_type<optim::SGD>("SGD", "with momentum", optim::SGDOptions{},
                                   [](Params& p, auto& o) {
                                     p("lr", &o.lr)("momentum", &o.momentum)("dampening", &o.dampening);
                                     p("weight_decay", &o.weight_decay)("nesterov", &o.nesterov)("maximize",
                                                                                                 &o.maximize);
                                   }),
    };
    for (const NamedType& type : types_of_extensions())
      if (type.read) all.push_back(type);
    return all;
  }();
  return types;
}

const NamedType* type_named(const std::string& name) {
  for (const auto* types : {&optimizer_types(), &types_of_extensions()})
    for (const NamedType& type : *types)
      if (lower(type.name) == lower(name)) return &type;
  return nullptr;
}

Optimizers make_optimizers(const Config& config, const NamedParameters& parameters, dist::ProcessGroup* group) {
  if (config.optimizer.type.empty()) return {};
  return std::get<MakeOptimizers>(read_named(ParamsKind::optimizer, config.optimizer))(parameters, group);
}

}  // namespace lockstep::engine
