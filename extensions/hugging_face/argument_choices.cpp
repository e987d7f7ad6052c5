// Optimizers and schedules by Hugging Face's names, with its formulas. See argument_choices.h.
#include "extensions/hugging_face/argument_choices.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/suggest.h"
#include "extensions/optimizers/fused_rules.h"
#include "extensions/optimizers/matrix_rules.h"
#include "extensions/optimizers/schedules.h"
#include "extensions/quantization/eight_bit.h"
#include "optim/optim.h"

namespace lockstep::train {

using data::Json;

void check_word(const char* argument, const std::string& word, const std::vector<std::string>& known) {
  expect(std::ranges::count(known, word) > 0, argument, "one of ", list_names(known), ", got ", word);
}

namespace {

// --- optimizers ---

/// The group options of a rule, from its learning rate and weight decay.
template <class Rule> using OptionsOf = decltype(typename Rule::Group().options);

/// Makes a rule with these options. `decay`: weight decay of matrices; biases and norms have none, as in Hugging Face.
template <class Rule> std::unique_ptr<optim::Optimizer> grouped(nn::Module& model, OptionsOf<Rule> o, double decay) {
  typename Rule::Group matrices{{}, o}, others{{}, o}, tables{{}, o};
  matrices.options.weight_decay = tables.options.weight_decay = decay;
  others.options.weight_decay = 0;
  constexpr bool in_8_bits = requires { o.min_8bit_size; };
  if constexpr (in_8_bits) tables.options.min_8bit_size = INT64_MAX;  // as in Hugging Face: embeddings stay in f32
  for (const nn::NamedParameter& p : model.named_parameters())
    (p.variable.dim() < 2 ? others : in_8_bits && p.is_table ? tables : matrices).parameters.push_back(p.variable);
  std::vector<typename Rule::Group> groups{matrices, others};
  if (in_8_bits) groups.push_back(tables);
  return std::make_unique<Rule>(groups);
}

template <class Rule> std::unique_ptr<optim::Optimizer> adam(const TrainingArguments& a, nn::Module& model) {
  OptionsOf<Rule> o;
  o.lr = a.learning_rate, o.beta1 = a.adam_beta1, o.beta2 = a.adam_beta2, o.eps = a.adam_epsilon;
  return grouped<Rule>(model, o, a.weight_decay);
}
template <class Rule> std::unique_ptr<optim::Optimizer> lion(const TrainingArguments& a, nn::Module& model) {
  OptionsOf<Rule> o;
  o.lr = a.learning_rate, o.beta1 = a.adam_beta1, o.beta2 = a.adam_beta2;
  return grouped<Rule>(model, o, a.weight_decay);
}
/// The optimizers of PyTorch of which Hugging Face sets nothing but the rate.
template <class Rule> std::unique_ptr<optim::Optimizer> plain(const TrainingArguments& a, nn::Module& model) {
  OptionsOf<Rule> o;
  o.lr = a.learning_rate;
  return grouped<Rule>(model, o, a.weight_decay);
}
/// Hugging Face's Adafactor with scale_parameter and relative_step off, as its Trainer makes it. It adds 1e-30 to
/// squared gradients; the bounds that eps1 sets differ from that only for gradients with an RMS below 1e-9.
std::unique_ptr<optim::Optimizer> adafactor(const TrainingArguments& a, nn::Module& model) {
  return grouped<optim::Adafactor>(
      model, {.lr = a.learning_rate, .eps1 = 1e-18, .scale_parameter = false, .relative_step = false}, a.weight_decay);
}

struct NamedOptimizer {
  const char* name;
  std::unique_ptr<optim::Optimizer> (*make)(const TrainingArguments&, nn::Module&);
};
/// "Fused", "apex" and "paged" tell how PyTorch or bitsandbytes run the same update.
constexpr NamedOptimizer optimizers[] = {{"adamw_torch", adam<optim::AdamW>},
                                         {"adamw_torch_fused", adam<optim::AdamW>},
                                         {"adamw_apex_fused", adam<optim::AdamW>},
                                         {"paged_adamw_32bit", adam<optim::AdamW>},
                                         {"adamw_8bit", adam<optim::AdamW8bit>},
                                         {"adamw_bnb_8bit", adam<optim::AdamW8bit>},
                                         {"paged_adamw_8bit", adam<optim::AdamW8bit>},
                                         {"lion_32bit", lion<optim::Lion>},
                                         {"paged_lion_32bit", lion<optim::Lion>},
                                         {"lion_8bit", lion<optim::Lion8bit>},
                                         {"paged_lion_8bit", lion<optim::Lion8bit>},
                                         {"adafactor", adafactor},
                                         {"sgd", plain<optim::SGD>},
                                         {"adagrad", plain<optim::Adagrad>},
                                         {"rmsprop", plain<optim::RMSprop>}};

// --- schedules ---

/// The types of schedules, and the keys of lr_scheduler_kwargs that each takes.
const std::vector<std::pair<std::string, std::vector<std::string>>>& schedules() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> all = {
      {"linear", {}},
      {"constant", {}},
      {"constant_with_warmup", {}},
      {"cosine", {"num_cycles"}},
      {"cosine_with_restarts", {"num_cycles"}},
      {"cosine_with_min_lr", {"num_cycles", "min_lr", "min_lr_rate"}},
      {"polynomial", {"lr_end", "power"}},
      {"inverse_sqrt", {"timescale"}},
      {"warmup_stable_decay",
       {"num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"}},
      {"reduce_lr_on_plateau",
       {"mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"}}};
  return all;
}

/// Values of lr_scheduler_kwargs.
struct Kwargs {
  const Json& json;
  bool has(const char* key) const { return json.find(key) && !json.find(key)->is_null(); }
  double number(const char* key, double otherwise, double least = 0) const {
    const double value = has(key) ? json.find(key)->as_number(where(key)) : otherwise;
    expect(std::isfinite(value) && value >= least, where(key).c_str(), "a number from ", least, " up, got ", value);
    return value;
  }
  int64_t integer(const char* key, int64_t otherwise, int64_t least) const {
    const int64_t value = has(key) ? json.find(key)->as_int(where(key)) : otherwise;
    expect(value >= least, where(key).c_str(), "a whole number from ", least, " up, got ", value);
    return value;
  }
  std::string word(const char* key, const std::vector<std::string>& known, size_t otherwise = 0) const {
    const std::string value = has(key) ? json.find(key)->as_string(where(key)) : known[otherwise];
    check_word(where(key).c_str(), value, known);
    return value;
  }
  static std::string where(const char* key) { return str("lr_scheduler_kwargs ", key); }
};

double half_cosine(double cycles, double done) { return 0.5 * (1 + std::cos(std::numbers::pi * (2 * cycles) * done)); }

/// Warm-up by warmup_type, the full rate, and a decay of num_decay_steps by decay_type, between min_lr_ratio and 1.
double stable_factor(const Kwargs& k, double step, double all, double warmup) {
  const double least = k.number("min_lr_ratio", 0), cycles = k.number("num_cycles", 0.5);
  const double decay = double(k.integer("num_decay_steps", 0, 0)),
               stable = double(k.integer("num_stable_steps", std::max<int64_t>(0, int64_t(all - warmup - decay)), 0));
  const std::string rises = k.word("warmup_type", {"linear", "cosine", "1-sqrt"}),
                    falls = k.word("decay_type", {"linear", "cosine", "1-sqrt"}, 1);
  const auto raised = [least](double factor) { return std::max(0.0, factor * (1 - least) + least); };
  if (step < warmup) {
    const double done = step / std::max(1.0, warmup);
    return raised(rises == "linear"   ? done
                  : rises == "cosine" ? 0.5 * (1 - std::cos(std::numbers::pi * done))
                                      : 1 - std::sqrt(1 - done));
  }
  if (step < warmup + stable) return 1;
  if (step >= warmup + stable + decay) return least;
  const double done = (step - warmup - stable) / std::max(1.0, decay);
  return raised(falls == "linear" ? 1 - done : falls == "cosine" ? half_cosine(cycles, done) : 1 - std::sqrt(done));
}

/// ReduceLROnPlateau that follows the evaluations and not the steps of the engine.
class EvaluatedPlateau : public optim::ReduceLROnPlateau {
 public:
  using ReduceLROnPlateau::ReduceLROnPlateau;
  void step() override {}
  void step(double) override {}
  bool wants_metric() const override { return false; }
  void evaluated(double metric) { ReduceLROnPlateau::step(metric); }
};

optim::ReduceLROnPlateau::Options plateau_options(const TrainingArguments& a) {
  const Kwargs k{a.lr_scheduler_kwargs};
  const bool rises = a.greater_is_better.value_or(!a.best_metric().ends_with("loss"));
  return {.mode = k.word("mode", {"min", "max"}, rises ? 1 : 0),
          .factor = k.number("factor", 0.1),
          .patience = k.integer("patience", 10, 0),
          .threshold = k.number("threshold", 1e-4),
          .threshold_mode = k.word("threshold_mode", {"rel", "abs"}),
          .cooldown = k.integer("cooldown", 0, 0),
          .min_lr = k.number("min_lr", 0),
          .eps = k.number("eps", 1e-8)};
}

double warmup_of(const TrainingArguments& a, double steps) {
  return std::ceil(a.warmup_steps < 1 ? a.warmup_steps * steps : a.warmup_steps);
}

}  // namespace

void check_optimizer(const TrainingArguments& a) {
  std::vector<std::string> known;
  for (const NamedOptimizer& one : optimizers) known.push_back(one.name);
  check_word("optim", a.optim, known);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainingArguments& a, nn::Module& model) {
  check_optimizer(a);
  return std::ranges::find_if(optimizers, [&](const auto& one) { return a.optim == one.name; })->make(a, model);
}

void check_schedule(const TrainingArguments& a) {
  std::vector<std::string> known;
  for (const auto& [name, keys] : schedules()) known.push_back(name);
  check_word("lr_scheduler_type", a.lr_scheduler_type, known);
  const auto& keys =
      std::ranges::find_if(schedules(), [&](const auto& s) { return s.first == a.lr_scheduler_type; })->second;
  expect(a.lr_scheduler_kwargs.is_object(), "lr_scheduler_kwargs", "an object, got ", a.lr_scheduler_kwargs.dump());
  for (const auto& [key, value] : a.lr_scheduler_kwargs.as_object())
    expect(std::ranges::count(keys, key) > 0, "lr_scheduler_kwargs",
           keys.empty() ? str("none for ", a.lr_scheduler_type)
                        : str("those of ", a.lr_scheduler_type, ", ", list_names(keys)),
           ", got ", key);
  const Kwargs k{a.lr_scheduler_kwargs};
  const bool stable = a.lr_scheduler_type == "warmup_stable_decay";
  expect(!stable || k.has("num_decay_steps"), "lr_scheduler_kwargs",
         "num_decay_steps, the length of the decay at the end of warmup_stable_decay, got none");
  if (a.lr_scheduler_type == "cosine_with_min_lr")
    expect(k.has("min_lr") != k.has("min_lr_rate"), "lr_scheduler_kwargs",
           "min_lr or min_lr_rate for cosine_with_min_lr, got ", k.has("min_lr") ? "both" : "neither");
  if (follows_evaluation(a)) {
    expect(a.eval_strategy != "no", "lr_scheduler_type reduce_lr_on_plateau", "an eval_strategy, got no");
    expect(plateau_options(a).factor < 1, "lr_scheduler_kwargs factor", "a number below 1, got ",
           plateau_options(a).factor);
  }
  a.lr_factor(steps_limit, 1);  // reads all values, to find wrong ones now
}

bool follows_evaluation(const TrainingArguments& a) { return a.lr_scheduler_type == "reduce_lr_on_plateau"; }

std::unique_ptr<optim::Schedule> make_schedule(const TrainingArguments& a, optim::Optimizer& optimizer, int64_t steps) {
  if (follows_evaluation(a)) return std::make_unique<EvaluatedPlateau>(optimizer, plateau_options(a));
  if (a.lr_scheduler_type == "warmup_stable_decay") {
    const Kwargs k{a.lr_scheduler_kwargs};
    const double parts = warmup_of(a, double(steps)) + double(k.integer("num_decay_steps", 0, 0)) +
                         double(k.integer("num_stable_steps", 0, 0));
    expect(parts <= double(steps), "lr_scheduler_kwargs",
           "warmup_steps, num_stable_steps and num_decay_steps to fit into the run's ", steps, " steps, got ", parts);
  }
  return std::make_unique<optim::LambdaLR>(optimizer, [a, steps](int64_t t) { return a.lr_factor(t, steps); });
}

void follow_evaluation(const std::string& metric, const std::vector<std::pair<std::string, double>>& metrics,
                       engine::EngineBase& engine) {
  auto* const schedule = dynamic_cast<EvaluatedPlateau*>(engine.lr_scheduler());
  if (!schedule) return;
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) {
    if (name == metric) return schedule->evaluated(value);
    names.push_back(name);
  }
  expect(false, "metric_for_best_model", "one of those evaluated, ", list_names(names), ", got ", metric);
}

double TrainingArguments::lr_factor(int64_t t, int64_t steps) const {
  const std::string& type = lr_scheduler_type;
  if (type == "constant" || type == "reduce_lr_on_plateau") return 1;
  const Kwargs k{lr_scheduler_kwargs};
  const double all = double(steps), step = double(t), warmup = warmup_of(*this, all);
  if (type == "warmup_stable_decay") return stable_factor(k, step, all, warmup);
  if (step < warmup) return step / std::max(1.0, warmup);
  if (type == "constant_with_warmup") return 1;
  if (type == "inverse_sqrt") {
    const double scale = k.number("timescale", warmup > 0 ? warmup : 10000, 1);
    return 1 / std::sqrt((step - warmup + scale) / scale);
  }
  const double done = std::min(1.0, (step - warmup) / std::max(1.0, all - warmup));
  if (type == "cosine") return std::max(0.0, half_cosine(k.number("num_cycles", 0.5), done));
  if (type == "cosine_with_restarts") {
    const double cycles = k.number("num_cycles", 1);
    return done >= 1 ? 0 : std::max(0.0, half_cosine(0.5, std::fmod(cycles * done, 1.0)));
  }
  if (type == "cosine_with_min_lr") {
    const double least = k.has("min_lr") ? k.number("min_lr", 0) / learning_rate : k.number("min_lr_rate", 0);
    return std::max(0.0, half_cosine(k.number("num_cycles", 0.5), done) * (1 - least) + least);
  }
  if (type == "linear") return 1 - done;
  const double end = k.number("lr_end", 1e-7);  // polynomial
  expect(end < learning_rate, "lr_scheduler_kwargs lr_end", "less than learning_rate ", learning_rate, ", got ", end);
  const double last = end / learning_rate;
  return (1 - last) * std::pow(1 - done, k.number("power", 1)) + last;
}

}  // namespace lockstep::train
