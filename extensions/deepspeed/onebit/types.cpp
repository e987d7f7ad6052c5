// The 1-bit optimizers with DeepSpeed's names and defaults, in configuration files and on command lines.
#include "base/check.h"
#include "engine/params.h"
#include "extensions/deepspeed/onebit/onebit.h"
#include "train/optimizer_choices.h"

namespace lockstep::engine {

namespace {

/// Returns the reasons why a 1-bit optimizer cannot run under a plan.
std::vector<std::string> onebit_reasons(const Config& c, const parallel::Plan& plan, const std::string& name) {
  std::vector<std::string> all;
  const auto refuse = [&](bool holds, const std::string& what) {
    if (holds) all.push_back(str(name, " exchanges gradients itself and ", what, ", or use AdamW"));
  };
  const ZeroConfig& z = c.zero_optimization;
  const int64_t stage = std::max<int64_t>(plan.zero, z.stage);
  refuse(plan.pp * plan.tp > 1,
         str("needs the whole model on every rank, but ", to_string(plan), " cuts it; leave pp and tp out"));
  refuse(plan.ep > 1,
         str("averages gradients over all ranks, but with ep", plan.ep, " ranks hold different experts; leave ep out"));
  refuse(stage != 0, str("needs stage 0, but zero_optimization.stage is ", stage, "; leave zero_optimization out"));
  refuse(z.offload_optimizer.device != zero::Offload::none,
         str("keeps its state with the parameters, but zero_optimization.offload_optimizer.device is ",
             name_of(z.offload_optimizer.device), "; leave it out"));
  refuse(c.ema.decay > 0,
         "has different parameters on every rank between exchanges, so ema.decay would average different values; leave "
         "ema out");
  refuse(z.ignore_unused_parameters && c.has("zero_optimization.ignore_unused_parameters"),
         "needs a gradient for every parameter, but zero_optimization.ignore_unused_parameters is true; leave it out");
  for (const auto& [key, value] : {std::pair("communication_data_type", c.communication_data_type),
                                   std::pair("data_types.grad_accum_dtype", c.data_types.grad_accum_dtype)})
    refuse(value.has_value(),
           str("sends them in the parameters' dtype, but ", key, " is ", value.value_or(""), "; leave it out"));
  return all;
}

/// Describes a 1-bit optimizer. fields: a function that adds the options that a file may set.
template <class Class, class O>
NamedType onebit_type(const char* name, const char* doc, const O& defaults,
                      void (*fields)(Params& p, std::type_identity_t<O>& o)) {
  return {
      name,
      doc,
      [=](Params& p) -> Make {
        O o = defaults;
        fields(p, o);
        p.without_effect("cuda_aware", false, "messages go through the process group");
        p.without_effect("comm_backend_name", "nccl", "messages go through the process group");
        p.fixed("amsgrad", false, "it has no 1-bit form");
        p.fixed("eps_inside_sqrt", false, "eps is added to the root");
        p.check([&] { optim::check_options(name, o); });
        return [o](const NamedParameters& parameters, dist::ProcessGroup* group) {
          Optimizers made;
          made.push_back(std::make_unique<Class>(variables(parameters), o, group));
          return made;
        };
      },
      onebit_reasons,
      {"zero_optimization.overlap_comm", "zero_optimization.reduce_bucket_size", "zero_optimization.reduce_scatter"}};
}

/// Adds the options that the 1-bit variants of Adam share.
template <class O> Params& onebit_adam(Params& p, O& o) {
  p("lr", &o.lr)("betas", Pair{&o.beta1, &o.beta2})("eps", &o.eps)("bias_correction", &o.bias_correction);
  return p("weight_decay", &o.weight_decay, least(0))("precondition", &o.precondition);
}

}  // namespace

std::vector<NamedType> onebit_types() {
  return {
      onebit_type<onebit::OneBitAdam>(
          "OneBitAdam", "1 bit an element on the wire after freeze_step; stage 0", onebit::OneBitAdamOptions{},
          [](Params& p, auto& o) { onebit_adam(p, o)("freeze_step", Count{&o.freeze_step}, least(1)); }),
      onebit_type<onebit::OneBitLamb>("OneBitLamb", "the same for LAMB; stage 0", onebit::OneBitLambOptions{},
                                      [](Params& p, auto& o) {
                                        onebit_adam(p, o)("freeze_step", Count{&o.freeze_step}, least(1));
                                        p("max_coeff", &o.max_coeff, positive())("min_coeff", &o.min_coeff, positive());
                                        p("coeff_beta", &o.coeff_beta, between(0, 1));
                                        p("factor_max", &o.factor_max, positive())("factor_min", &o.factor_min,
                                                                                   positive());
                                        p("factor_threshold", &o.factor_threshold, positive());
                                      }),
      onebit_type<onebit::ZeroOneAdam>("ZeroOneAdam", "Adam with 1 bit, and with steps that send nothing; stage 0",
                                       onebit::ZeroOneAdamOptions{},
                                       [](Params& p, auto& o) {
                                         onebit_adam(p, o)("var_freeze_step", Count{&o.var_freeze_step}, least(1));
                                         p("var_update_scaler", Count{&o.var_update_scaler}, least(1));
                                         p("local_step_scaler", Count{&o.local_step_scaler}, least(1));
                                         p("local_step_clipper", Count{&o.local_step_clipper}, least(1));
                                       }),
      onebit_type<onebit::OneBitSGD>("OneBitSGD", "SGD with error feedback; stage 0", onebit::OneBitSGDOptions{},
                                     [](Params& p, auto& o) {
                                       p("lr", &o.lr)("weight_decay", &o.weight_decay, least(0));
                                       p("momentum", &o.momentum, between(0, 1))("dampening", &o.dampening);
                                       p("nesterov", &o.nesterov)("freeze_step", Count{&o.freeze_step}, least(0));
                                     }),
  };
}

}  // namespace lockstep::engine

namespace lockstep::train {

namespace {

template <class Optimizer, class Options>
std::unique_ptr<optim::Optimizer> make(const std::vector<OptimizerGroup>& groups, dist::ProcessGroup& ranks,
                                       Options options) {
  std::vector<typename Optimizer::Group> all;
  for (const OptimizerGroup& g : groups) {
    options.weight_decay = g.weight_decay;
    all.push_back({g.parameters, options});
  }
  return std::make_unique<Optimizer>(all, &ranks);
}

std::unique_ptr<optim::Optimizer> make_onebit(const OptimizerOptions& o, const std::vector<OptimizerGroup>& groups,
                                              double freeze, dist::ProcessGroup& ranks) {
  using namespace onebit;
  if (o.name == "onebit-adam")
    return make<OneBitAdam>(groups, ranks,
                            OneBitAdamOptions{.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .freeze_step = freeze});
  if (o.name == "onebit-lamb")
    return make<OneBitLamb>(groups, ranks,
                            OneBitLambOptions{.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .freeze_step = freeze});
  if (o.name == "zero-one-adam")
    return make<ZeroOneAdam>(
        groups, ranks, ZeroOneAdamOptions{.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .var_freeze_step = freeze});
  return make<OneBitSGD>(groups, ranks, OneBitSGDOptions{.lr = o.lr, .momentum = o.beta1, .freeze_step = freeze});
}

}  // namespace

std::vector<OptimizerChoices> onebit_choices() {
  return {{.about = "a 1-bit optimizer, which sends 1 bit per number",
           .plural = "1-bit optimizers",
           .names = {"onebit-adam", "onebit-lamb", "zero-one-adam", "onebit-sgd"},
           .freezing = "1-bit: freeze_step=N, the number of exact steps at the start",
           .make = make_onebit}};
}

}  // namespace lockstep::train
