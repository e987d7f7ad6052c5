// Optimizers by DeepSpeed's names, with its defaults: a file that says nothing of an option means what it means there.
#include "engine/params.h"
#include "optim/optim.h"
#include "parallel/onebit/onebit.h"

namespace lockstep::engine {

using data::Json;

namespace {

using Made = std::vector<std::unique_ptr<optim::Optimizer>>;

struct OptimizerType {
  std::string name, doc;
  std::function<std::vector<ParamInfo>(const Json& params, std::vector<std::string>& problems,
                                       std::vector<std::string>& warnings)>
      check;
  std::function<Made(const NamedConfig& config, const NamedParameters& parameters, dist::ProcessGroup* group)> make;
};

std::vector<Variable> variables(const NamedParameters& parameters) {
  std::vector<Variable> all;
  for (const auto& p : parameters) all.push_back(p.variable);
  return all;
}

/// An entry made of rows, defaults and a function of the options. finish(options, params, problems, warnings) checks
/// what the options are together.
template <class O, class Finish, class Make>
OptimizerType type_of(const char* name, const char* doc, O defaults, std::vector<ParamRow<O>> rows, Finish finish,
                      Make make) {
  const auto read = [=, type = std::string(name)](const Json& params, O& options, std::vector<std::string>& problems,
                                                  std::vector<std::string>& warnings) {
    const size_t before = problems.size();
    auto all = read_params<O>("optimizer.params", type, rows, params, options, problems, warnings);
    if (problems.size() > before) return all;
    try {
      finish(options, params, warnings);
    } catch (const Error& error) {  // "[AdamW] expected lr ..."
      const std::string text = error.what();
      problems.push_back("optimizer.params: " + text.substr(text.find("] ") == text.npos ? 0 : text.find("] ") + 2));
    }
    return all;
  };
  return {name, doc,
          [=](const Json& params, std::vector<std::string>& problems, std::vector<std::string>& warnings) {
            O options = defaults;
            return read(params, options, problems, warnings);
          },
          [=](const NamedConfig& config, const NamedParameters& parameters, dist::ProcessGroup* group) {
            O options = defaults;
            std::vector<std::string> problems, warnings;
            read(config.params, options, problems, warnings);
            fail_if_any("optimizer", problems);
            return make(options, parameters, group);
          }};
}

/// What most are: one class of optim/ with its own options.
template <class Class, class O>
OptimizerType plain(const char* name, const char* doc, O defaults, std::vector<ParamRow<O>> rows) {
  return type_of<O>(
      name, doc, defaults, std::move(rows), [=](const O& o, const Json&, std::vector<std::string>&) { o.check(name); },
      [](const O& o, const NamedParameters& parameters, dist::ProcessGroup* group) {
        Made made;
        if constexpr (std::is_base_of_v<onebit::Optimizer, Class>)
          made.push_back(std::make_unique<Class>(variables(parameters), o, group));
        else made.push_back(std::make_unique<Class>(variables(parameters), o));
        return made;
      });
}

// --- Adam and AdamW: one switch apart ---

struct AdamChoice : optim::AdamOptions {
  bool adam_w_mode = false;
};

std::unique_ptr<optim::Optimizer> make_adam(const AdamChoice& o, std::vector<Variable> parameters) {
  if (!o.adam_w_mode) return std::make_unique<optim::Adam>(std::move(parameters), o);
  return std::make_unique<optim::AdamW>(std::move(parameters),
                                        optim::AdamWOptions{.lr = o.lr,
                                                            .beta1 = o.beta1,
                                                            .beta2 = o.beta2,
                                                            .eps = o.eps,
                                                            .weight_decay = o.weight_decay,
                                                            .amsgrad = o.amsgrad,
                                                            .maximize = o.maximize,
                                                            .bias_correction = o.bias_correction});
}

OptimizerType adam(const char* name, const char* doc, bool decoupled, bool says_so) {
  using O = AdamChoice;
  O defaults;
  defaults.adam_w_mode = decoupled;
  std::vector<ParamRow<O>> rows = {row<O>("lr", &O::lr),
                                   pair_of<O>("betas", &O::beta1, &O::beta2),
                                   row<O>("eps", &O::eps),
                                   row<O>("weight_decay", &O::weight_decay),
                                   row<O>("bias_correction", &O::bias_correction),
                                   row<O>("amsgrad", &O::amsgrad),
                                   row<O>("maximize", &O::maximize)};
  rows.push_back(std::string(name) == "AdamW" ? fixed<O>("adam_w_mode", true, "AdamW is that")
                                              : row<O>("adam_w_mode", &O::adam_w_mode));
  for (const char* same : {"torch_adam", "fused", "foreach", "capturable", "differentiable"})
    rows.push_back(without_effect<O>(same, false, "there is one implementation"));
  rows.push_back(fixed<O>("fp32_optimizer_states", true, "optimizer state is f32"));
  return type_of<O>(
      name, doc, defaults, std::move(rows),
      [=](const O& o, const Json& params, std::vector<std::string>& warnings) {
        o.check(name);
        if (says_so && o.weight_decay != 0 && !params.find("adam_w_mode")) {
          warnings.push_back(
              "optimizer.type: Adam adds weight_decay to the gradient here; DeepSpeed takes \"Adam\" for AdamW unless "
              "adam_w_mode is false: write \"AdamW\" for that");
        }
      },
      [](const O& o, const NamedParameters& parameters, dist::ProcessGroup*) {
        Made made;
        made.push_back(make_adam(o, variables(parameters)));
        return made;
      });
}

// --- Muon: matrices; AdamW for the rest ---

struct MuonChoice : optim::MuonOptions {
  std::optional<double> muon_lr, adam_lr;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  std::string ns_method = "gram";
  bool adam_w_mode = true;
};

/// Matrices that are no tables of embeddings and no head: these have a row for each token, and belong to AdamW. Where
/// the module does not say, its name does, as with DeepSpeed.
bool is_for_muon(const nn::NamedParameter& p) {
  const auto called = [&](const char* name) { return p.name.find(name) != p.name.npos; };
  return p.variable.dim() == 2 && !p.is_table && !called("embed") && !called("head.");
}

OptimizerType muon() {
  using O = MuonChoice;
  O defaults;
  defaults.lr = 1e-3;
  return type_of<O>(
      "Muon", "matrices; embeddings, heads and all else go to AdamW (Adam when adam_w_mode is false)", defaults,
      {row<O>("lr", &O::lr), row<O>("momentum", &O::momentum), row<O>("weight_decay", &O::weight_decay),
       row<O>("nesterov", &O::nesterov), row<O>("muon_lr", &O::muon_lr, least(0)),
       row<O>("adam_lr", &O::adam_lr, least(0)), pair_of<O>("betas", &O::beta1, &O::beta2), row<O>("eps", &O::eps),
       row<O>("adam_w_mode", &O::adam_w_mode), row<O>("ns_method", &O::ns_method, words({"gram", "standard"})),
       without_effect<O>("torch_adam", false, "there is one implementation"),
       fixed<O>("per_head_muon", false, "attention is not cut by heads")},
      [](const O& o, const Json& params, std::vector<std::string>& warnings) {
        o.check("Muon");
        optim::AdamWOptions{
            .lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay}
            .check("Muon");
        if (params.find("ns_method") && o.ns_method == "gram")
          warnings.push_back(
              "optimizer.params.ns_method: the standard iteration is used, which gram computes in another order");
      },
      [](const O& o, const NamedParameters& parameters, dist::ProcessGroup*) {
        std::vector<Variable> matrices, rest;
        for (const auto& p : parameters) (is_for_muon(p) ? matrices : rest).push_back(p.variable);
        Made made;
        if (!matrices.empty()) {
          optim::MuonOptions m = o;
          m.lr = o.muon_lr.value_or(o.lr);
          made.push_back(std::make_unique<optim::Muon>(std::move(matrices), m));
        }
        if (!rest.empty()) {
          AdamChoice a;
          a.lr = o.adam_lr.value_or(o.lr), a.beta1 = o.beta1, a.beta2 = o.beta2, a.eps = o.eps,
          a.weight_decay = o.weight_decay, a.adam_w_mode = o.adam_w_mode;
          made.push_back(make_adam(a, std::move(rest)));
        }
        LOCKSTEP_CHECK(!made.empty(), "[Muon] expected at least one parameter, got none");
        return made;
      });
}

// --- The 1-bit ones ---

/// A whole number of the file that the library counts in doubles.
template <class O> ParamRow<O> count_of(const char* name, double O::*field, double at_least = 1) {
  return {name,
          ParamType<int64_t>::wants(least(at_least)),
          "",
          false,
          [=](const O& o) { return data::Json(int64_t(o.*field)); },
          [=](O& o, const data::Json& json) {
            const auto value = ParamType<int64_t>::from(json, least(at_least));
            if (value) o.*field = double(*value);
            return value.has_value();
          }};
}

template <class Class, class O>
OptimizerType one_bit(const char* name, const char* doc, const std::vector<ParamRow<O>>& more) {
  std::vector<ParamRow<O>> rows = {row<O>("lr", &O::lr)};
  constexpr bool adam = requires { &O::beta1; };
  if constexpr (adam) {
    rows.push_back(pair_of<O>("betas", &O::beta1, &O::beta2));
    rows.push_back(row<O>("eps", &O::eps));
    rows.push_back(row<O>("bias_correction", &O::bias_correction));
  }
  rows.push_back(row<O>("weight_decay", &O::weight_decay, least(0)));
  if constexpr (adam) rows.push_back(row<O>("precondition", &O::precondition));
  rows.insert(rows.end(), more.begin(), more.end());
  rows.push_back(without_effect<O>("cuda_aware", false, "messages go through the process group"));
  rows.push_back(without_effect<O>("comm_backend_name", "nccl", "messages go through the process group"));
  rows.push_back(fixed<O>("amsgrad", false, "it has no 1-bit form"));
  rows.push_back(fixed<O>("eps_inside_sqrt", false, "eps is added to the root"));
  return plain<Class, O>(name, doc, {}, std::move(rows));
}

const std::vector<OptimizerType>& all_types() {
  static const std::vector<OptimizerType> types = [] {
    std::vector<OptimizerType> all;
    all.push_back(adam("AdamW", "decoupled weight decay", true, false));
    all.push_back(adam("Adam",
                       "weight decay is added to the gradient, unless adam_w_mode is true (DeepSpeed's default)", false,
                       true));
    all.push_back(adam("FusedAdam", "Adam or AdamW, as adam_w_mode says", true, false));
    all.push_back(adam("CPUAdam", "the same", true, false));
    all.push_back(adam("DeepSpeedCPUAdam", "the same", true, false));
    {
      using O = optim::SGDOptions;
      all.push_back(plain<optim::SGD, O>("SGD", "with momentum", {},
                                         {row<O>("lr", &O::lr), row<O>("momentum", &O::momentum),
                                          row<O>("dampening", &O::dampening), row<O>("weight_decay", &O::weight_decay),
                                          row<O>("nesterov", &O::nesterov), row<O>("maximize", &O::maximize)}));
    }
    {
      using O = optim::LAMBOptions;
      all.push_back(plain<optim::LAMB, O>(
          "Lamb", "layer-wise rates", {.eps = 1e-8},
          {row<O>("lr", &O::lr), pair_of<O>("betas", &O::beta1, &O::beta2), row<O>("eps", &O::eps),
           row<O>("weight_decay", &O::weight_decay), row<O>("bias_correction", &O::bias_correction),
           row<O>("max_coeff", &O::max_trust), row<O>("min_coeff", &O::min_trust), row<O>("maximize", &O::maximize),
           fixed<O>("amsgrad", false, "LAMB has none"),
           fixed<O>("eps_inside_sqrt", false, "eps is added to the root")}));
    }
    {
      using O = optim::LionOptions;
      all.push_back(
          plain<optim::Lion, O>("Lion", "the sign of momentum", {.lr = 1e-3},
                                {row<O>("lr", &O::lr), pair_of<O>("betas", &O::beta1, &O::beta2),
                                 row<O>("weight_decay", &O::weight_decay), row<O>("maximize", &O::maximize)}));
    }
    {
      using O = optim::AdagradOptions;
      all.push_back(plain<optim::Adagrad, O>(
          "Adagrad", "", {},
          {row<O>("lr", &O::lr), row<O>("lr_decay", &O::lr_decay), row<O>("eps", &O::eps),
           row<O>("weight_decay", &O::weight_decay), row<O>("initial_accumulator_value", &O::initial_accumulator),
           row<O>("maximize", &O::maximize)}));
    }
    {
      using O = optim::RMSpropOptions;
      all.push_back(
          plain<optim::RMSprop, O>("RMSprop", "", {},
                                   {row<O>("lr", &O::lr), row<O>("alpha", &O::alpha), row<O>("eps", &O::eps),
                                    row<O>("weight_decay", &O::weight_decay), row<O>("momentum", &O::momentum),
                                    row<O>("centered", &O::centered), row<O>("maximize", &O::maximize)}));
    }
    all.push_back(muon());
    {
      using O = onebit::OneBitAdamOptions;
      all.push_back(one_bit<onebit::OneBitAdam, O>("OneBitAdam",
                                                   "1 bit an element on the wire after freeze_step; stage 0",
                                                   {count_of("freeze_step", &O::freeze_step)}));
    }
    {
      using O = onebit::OneBitLambOptions;
      all.push_back(one_bit<onebit::OneBitLamb, O>(
          "OneBitLamb", "the same for LAMB; stage 0",
          {count_of("freeze_step", &O::freeze_step), row<O>("max_coeff", &O::max_coeff, positive()),
           row<O>("min_coeff", &O::min_coeff, positive()), row<O>("coeff_beta", &O::coeff_beta, between(0, 1)),
           row<O>("factor_max", &O::factor_max, positive()), row<O>("factor_min", &O::factor_min, positive()),
           row<O>("factor_threshold", &O::factor_threshold, positive())}));
    }
    {
      using O = onebit::ZeroOneAdamOptions;
      all.push_back(one_bit<onebit::ZeroOneAdam, O>(
          "ZeroOneAdam", "Adam with 1 bit, and with steps that send nothing; stage 0",
          {count_of("var_freeze_step", &O::var_freeze_step), count_of("var_update_scaler", &O::var_update_scaler),
           count_of("local_step_scaler", &O::local_step_scaler),
           count_of("local_step_clipper", &O::local_step_clipper)}));
    }
    {
      using O = onebit::OneBitSGDOptions;
      all.push_back(one_bit<onebit::OneBitSGD, O>(
          "OneBitSGD", "SGD with error feedback; stage 0",
          {row<O>("momentum", &O::momentum, between(0, 1)), row<O>("dampening", &O::dampening),
           row<O>("nesterov", &O::nesterov), count_of("freeze_step", &O::freeze_step, 0)}));
    }
    return all;
  }();
  return types;
}

}  // namespace

std::vector<TypeInfo> optimizer_types() {
  std::vector<TypeInfo> all;
  std::vector<std::string> problems, warnings;
  for (const OptimizerType& type : all_types())
    all.push_back({type.name, type.doc, type.check(Json::Object(), problems, warnings)});
  return all;
}

std::vector<ParamInfo> check_optimizer(const NamedConfig& config, std::vector<std::string>& problems,
                                       std::vector<std::string>& warnings) {
  if (const OptimizerType* type = find_type(all_types(), config.type))
    return type->check(config.params, problems, warnings);
  problems.push_back(unknown_type(all_types(), "optimizer.type", config.type));
  return {};
}

Made make_optimizers(const Config& config, const NamedParameters& parameters, dist::ProcessGroup* group) {
  if (config.optimizer.type.empty()) return {};
  const OptimizerType* type = find_type(all_types(), config.optimizer.type);
  LOCKSTEP_CHECK(type, unknown_type(all_types(), "optimizer.type", config.optimizer.type));
  return type->make(config.optimizer, parameters, group);
}

}  // namespace lockstep::engine
