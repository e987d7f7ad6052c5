// Optimizers with the names and defaults of DeepSpeed: an option that is missing in a file has the same value as in
// DeepSpeed.
#include <limits>

#include "base/check.h"
#include "engine/params.h"
#include "optim/optim.h"
#include "parallel/onebit/onebit.h"

namespace lockstep::engine {

namespace {

template <class Class, class O, class... More>
void add(Optimizers& to, std::vector<Variable> parameters, const O& options, More... more) {
  to.push_back(std::make_unique<Class>(std::move(parameters), options, more...));
}

/// Describes a 1-bit optimizer. fields: a function that adds the options that a file may set.
template <class Class, class O>
NamedType one_bit(const char* name, const char* doc, const O& defaults,
                  void (*fields)(Params& p, std::type_identity_t<O>& o)) {
  return {name, doc, [=](Params& p) -> Make {
            O o = defaults;
            fields(p, o);
            p.without_effect("cuda_aware", false, "messages go through the process group");
            p.without_effect("comm_backend_name", "nccl", "messages go through the process group");
            p.fixed("amsgrad", false, "it has no 1-bit form");
            p.fixed("eps_inside_sqrt", false, "eps is added to the root");
            p.check([&] { optim::check_options(name, o); });
            return [o](const NamedParameters& parameters, dist::ProcessGroup* group) {
              Optimizers made;
              add<Class>(made, variables(parameters), o, group);
              return made;
            };
          }};
}

// --- Adam and AdamW differ in one switch ---

struct AdamChoice : optim::AdamOptions {
  bool adam_w_mode = false;
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
  o.adam_w_mode = p.type != "Adam";
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
        "optimizer.type: Adam adds weight_decay to the gradient here; DeepSpeed takes \"Adam\" for AdamW unless "
        "adam_w_mode is false: write \"AdamW\" for that");
  return [=](const NamedParameters& parameters, dist::ProcessGroup*) {
    Optimizers made;
    add_adam(made, o, variables(parameters));
    return made;
  };
}

// --- 8-bit state; token embeddings keep f32 state, since most of their rows have no gradient in most steps ---

template <class Class, class O> NamedType eight_bit(const char* name, const char* doc) {
  return {name, doc, [name](Params& p) -> Make {
            O o;
            o.lr = 1e-3;
            p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("weight_decay", &o.weight_decay);
            if constexpr (requires { o.eps; }) {
              p("eps", &o.eps)("bias_correction", &o.bias_correction);
              p.fixed("amsgrad", false, "its largest second moments have no form in 8 bits");
            }
            p("min_8bit_size", &o.min_8bit_size, least(0))("maximize", &o.maximize);
            p.fixed("optim_bits", 8, "its state always has 8 bits");
            p.fixed("block_wise", true, "scales are of blocks of 256");
            p.fixed("percentile_clipping", 100, "gradients are clipped by gradient_clipping");
            p.without_effect("is_paged", false, "use offload_optimizer");
            p.check([&] { optim::check_options(name, o); });
            return [o](const NamedParameters& parameters, dist::ProcessGroup*) {
              std::vector<typename Class::Group> groups{{{}, o}, {{}, o}};
              groups[1].options.min_8bit_size = std::numeric_limits<int64_t>::max();
              for (const auto& one : parameters) groups[one.is_table].parameters.push_back(one.variable);
              Optimizers made;
              made.push_back(std::make_unique<Class>(groups));
              return made;
            };
          }};
}

/// Adds the options that the 1-bit variants of Adam share.
template <class O> Params& one_bit_adam(Params& p, O& o) {
  p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("eps", &o.eps)("bias_correction", &o.bias_correction);
  return p("weight_decay", &o.weight_decay, least(0))("precondition", &o.precondition);
}

}  // namespace

const std::vector<NamedType>& optimizer_types() {
  static const std::vector<NamedType> types = [] {
    std::vector<NamedType> all = {
        {"AdamW", "decoupled weight decay", adam},
        {"Adam", "weight decay is added to the gradient, unless adam_w_mode is true (DeepSpeed's default)", adam},
        {"FusedAdam", "Adam or AdamW, as adam_w_mode says", adam},
        {"CPUAdam", "the same", adam},
        {"DeepSpeedCPUAdam", "the same", adam},
        optimizer_type<optim::SGD>("SGD", "with momentum", optim::SGDOptions{},
                                   [](Params& p, auto& o) {
                                     p("lr", &o.lr)("momentum", &o.momentum)("dampening", &o.dampening);
                                     p("weight_decay", &o.weight_decay)("nesterov", &o.nesterov)("maximize",
                                                                                                 &o.maximize);
                                   }),
        optimizer_type<optim::LAMB>(
            "Lamb", "layer-wise rates", optim::LAMBOptions{.eps = 1e-8},
            [](Params& p, auto& o) {
              p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("eps", &o.eps);
              p("weight_decay", &o.weight_decay)("bias_correction", &o.bias_correction);
              p("max_coeff", &o.max_trust)("min_coeff", &o.min_trust)("maximize", &o.maximize);
              p.fixed("amsgrad", false, "LAMB has none");
              p.fixed("eps_inside_sqrt", false, "eps is added to the root");
            },
            needs_matrices),
        optimizer_type<optim::Lion>("Lion", "the sign of momentum", optim::LionOptions{.lr = 1e-3},
                                    [](Params& p, auto& o) {
                                      p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2});
                                      p("weight_decay", &o.weight_decay)("maximize", &o.maximize);
                                    }),
        optimizer_type<optim::Adagrad>("Adagrad", "", optim::AdagradOptions{},
                                       [](Params& p, auto& o) {
                                         p("lr", &o.lr)("lr_decay", &o.lr_decay)("eps", &o.eps);
                                         p("weight_decay", &o.weight_decay);
                                         p("initial_accumulator_value", &o.initial_accumulator)("maximize",
                                                                                                &o.maximize);
                                       }),
        optimizer_type<optim::RMSprop>("RMSprop", "", optim::RMSpropOptions{},
                                       [](Params& p, auto& o) {
                                         p("lr", &o.lr)("alpha", &o.alpha)("eps", &o.eps)("weight_decay",
                                                                                          &o.weight_decay);
                                         p("momentum", &o.momentum)("centered", &o.centered)("maximize", &o.maximize);
                                       }),
    };
    for (NamedType& type : types_of_extensions())
      if (type.read) all.push_back(std::move(type));
    for (NamedType& type : std::vector<NamedType>{
             eight_bit<optim::AdamW8bit, optim::AdamW8bitOptions>("AdamW8bit", "AdamW with moments in 8 bits"),
             eight_bit<optim::Adam8bit, optim::Adam8bitOptions>("Adam8bit", "Adam with moments in 8 bits"),
             eight_bit<optim::Lion8bit, optim::Lion8bitOptions>("Lion8bit", "Lion with its moment in 8 bits"),
             one_bit<onebit::OneBitAdam>(
                 "OneBitAdam", "1 bit an element on the wire after freeze_step; stage 0", onebit::OneBitAdamOptions{},
                 [](Params&p, auto&o) { one_bit_adam(p, o)("freeze_step", Count{&o.freeze_step}, least(1)); }),
             one_bit<onebit::OneBitLamb>(
                 "OneBitLamb", "the same for LAMB; stage 0", onebit::OneBitLambOptions{},
                 [](Params&p, auto&o) {
                   one_bit_adam(p, o)("freeze_step", Count{&o.freeze_step}, least(1));
                   p("max_coeff", &o.max_coeff, positive())("min_coeff", &o.min_coeff, positive());
                   p("coeff_beta", &o.coeff_beta, between(0, 1));
                   p("factor_max", &o.factor_max, positive())("factor_min", &o.factor_min, positive());
                   p("factor_threshold", &o.factor_threshold, positive());
                 }),
             one_bit<onebit::ZeroOneAdam>("ZeroOneAdam", "Adam with 1 bit, and with steps that send nothing; stage 0",
                                          onebit::ZeroOneAdamOptions{},
                                          [](Params&p, auto&o) {
                                            one_bit_adam(p, o)("var_freeze_step", Count{&o.var_freeze_step}, least(1));
                                            p("var_update_scaler", Count{&o.var_update_scaler}, least(1));
                                            p("local_step_scaler", Count{&o.local_step_scaler}, least(1));
                                            p("local_step_clipper", Count{&o.local_step_clipper}, least(1));
                                          }),
             one_bit<onebit::OneBitSGD>("OneBitSGD", "SGD with error feedback; stage 0", onebit::OneBitSGDOptions{},
                                        [](Params&p, auto&o) {
                                          p("lr", &o.lr)("weight_decay", &o.weight_decay, least(0));
                                          p("momentum", &o.momentum, between(0, 1))("dampening", &o.dampening);
                                          p("nesterov", &o.nesterov)("freeze_step", Count{&o.freeze_step}, least(0));
                                        }),
         })
      all.push_back(std::move(type));
    return all;
  }();
  return types;
}

std::vector<std::string> needs_matrices(const Config&, const parallel::Plan& plan, const std::string& called) {
  if (plan.tp <= 1) return {};
  return {str(called, " needs whole matrices, which tp", plan.tp, " shards; leave tp out, or use AdamW")};
}

std::vector<std::string> reasons_of_type(const std::string& name, const Config& config, const parallel::Plan& plan,
                                         const std::string& called) {
  for (const auto& types : {optimizer_types(), types_of_extensions()})
    for (const NamedType& type : types)
      if (lower(type.name) == lower(name))
        return type.reasons ? type.reasons(config, plan, called) : std::vector<std::string>();
  return {};
}

Optimizers make_optimizers(const Config& config, const NamedParameters& parameters, dist::ProcessGroup* group) {
  if (config.optimizer.type.empty()) return {};
  return std::get<MakeOptimizers>(read_named(Kind::optimizer, config.optimizer))(parameters, group);
}

}  // namespace lockstep::engine
