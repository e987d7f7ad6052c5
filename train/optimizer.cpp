// --lr and --optimizer: adds and checks these options, and makes the optimizer. See optimizer.h.
#include "train/optimizer.h"

#include <algorithm>
#include <tuple>

#include "base/classic_text.h"
#include "base/suggest.h"
#include "optim/optim.h"
#include "train/cli.h"
#include "train/json_paths.h"
#include "train/option_group.h"
#include "train/words.h"

namespace lockstep::train {

namespace {

const std::string adamw = "adamw";

/// Names known to --optimizer.
std::vector<std::string> optimizer_names() {
  std::vector<std::string> all{adamw};
  for (const OptimizerChoices& choices : optimizer_choices())
    all.insert(all.end(), choices.names.begin(), choices.names.end());
  return all;
}

void read_optimizer(const std::string& text, OptimizerOptions& o) {
  std::vector<std::string> keys{"weight_decay", "beta1", "beta2"};
  if (!optimizer_choices().empty()) keys.push_back("freeze_step");
  const auto [name, values] = parse_words(text, keys, "--optimizer");
  const std::string wrong = one_of(optimizer_names())(name);
  LOCKSTEP_CHECK(wrong.empty(), "--optimizer: ", wrong);
  o.name = name;
  for (const auto& [key, to, limit] : {std::tuple("weight_decay", &o.weight_decay, 1e6),
                                       std::tuple("beta1", &o.beta1, 1.), std::tuple("beta2", &o.beta2, 1.)}) {
    const data::Json* value = values.find(key);
    if (!value) continue;
    *to = value->as_number(str("--optimizer: ", key));
    LOCKSTEP_CHECK(*to >= 0 && (*to < limit), "--optimizer: expected ", key, " from 0 to below ", limit, ", got ", *to);
  }
  if (const data::Json* value = values.find("freeze_step")) {
    o.freeze_step = value->as_int("--optimizer: freeze_step");
    LOCKSTEP_CHECK(o.freeze_step >= 1, "--optimizer: expected freeze_step of 1 or more, got ", o.freeze_step);
    const OptimizerChoices& others = optimizer_choices()[0];
    LOCKSTEP_CHECK(name != adamw, "--optimizer ", text, ": freeze_step is for ", others.plural, ", such as ",
                   others.names[0], "; leave it out");
  }
}

}  // namespace

void add_optimizer_options(CLI::App& app, OptimizerOptions& o, bool schedule) {
  const std::string group = "Training";
  std::string names = adamw, freezing;
  for (const OptimizerChoices& choices : optimizer_choices()) {
    names += str("; or ", choices.about, ": ", list_names(choices.names));
    freezing += str(" (", choices.freezing, ")");
  }
  app.add_option_function<std::string>(
         "--lr",
         [&o, schedule](const std::string& text) {
           const size_t colon = schedule ? std::min(text.find(':'), text.size()) : text.size();
           for (const std::string& one : {text.substr(0, colon), colon < text.size() ? text.substr(colon + 1) : "0"}) {
             const std::string wrong = number(0, 1e6)(one);
             if (!wrong.empty()) throw UsageError("--lr: " + wrong);
           }
           o.lr = *read_number<double>(text.substr(0, colon));
           if (colon < text.size()) o.last_lr = *read_number<double>(text.substr(colon + 1));
         },
         schedule ? "peak learning rate, or PEAK:LAST (default: 1e-3, down to a tenth of it)" : "learning rate")
      ->default_str(str(o.lr))
      ->group(group);
  app.add_option_function<std::string>(
         "--optimizer", [&o](const std::string& text) { as_usage([&] { read_optimizer(text, o); }); },
         str(names, "; and how: ", adamw, ",weight_decay=", o.weight_decay, ",beta1=", o.beta1, ",beta2=", o.beta2,
             freezing))
      ->default_str(o.name)
      ->group(group);
}

void check_optimizer(const OptimizerOptions& o, const TrainOptions& all) {
  if (o.name == adamw) return;
  const ParallelOptions& ranks = all.parallel;
  LOCKSTEP_CHECK(ranks.ranks > 0 || (engine::is_launched() && ranks.strategy != "none" && ranks.strategy != "dp"),
                 "--optimizer ", o.name,
                 " compresses communication between ranks, so it needs ranks that train together: start it with "
                 "lockstep run -n N -- ..., or give --ranks N");
}

void check_configured(const TrainJob& job, const std::vector<const char*>& of_schedule) {
  const auto type_of = [&](const char* key) {
    const data::Json* found = find_at(job.file(), key);
    return found && found->is_string() ? found->as_string() : std::string();
  };
  const std::string optimizer = type_of("optimizer.type"), scheduler = type_of("scheduler.type");
  const auto refuse = [&](const std::vector<const char*>& options, const char* key, const std::string& type,
                          const char* more) {
    for (const char* option : options)
      if (!type.empty() && job.options().is_given(option))
        throw UsageError(str("--", option, " contradicts ", job.origin(), ", where ", key, " is ", type, more,
                             "; leave one of them out"));
  };
  refuse({"optimizer"}, "optimizer.type", optimizer, "");
  if (!is_auto(job.file(), "optimizer.params.lr")) refuse({"lr"}, "optimizer.type", optimizer, "");
  if (is_auto(job.file(), "scheduler.params.warmup_num_steps")) return;  // the options fill in "auto"
  refuse(of_schedule, "scheduler.type", scheduler, "");
  refuse(of_schedule, "optimizer.type", optimizer, ", without a scheduler");
}

std::vector<OptimizerGroup> matrices_decay(nn::Module& model, double weight_decay) {
  OptimizerGroup matrices{.weight_decay = weight_decay}, others;
  for (const Variable& p : model.parameters()) (p.dim() >= 2 ? matrices : others).parameters.push_back(p);
  return {matrices, others};
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& o, const std::vector<OptimizerGroup>& groups,
                                                 int64_t steps, const TrainJob& job) {
  LOCKSTEP_CHECK(std::ranges::count(optimizer_names(), o.name), "[make_optimizer] expected ", listed(optimizer_names()),
                 ", got ", o.name);
  const double freeze = double(o.freeze_step > 0 ? o.freeze_step : std::max<int64_t>(steps / 5, 1));
  for (const OptimizerChoices& choices : optimizer_choices())
    if (std::ranges::count(choices.names, o.name)) return choices.make(o, groups, freeze, job.mesh().replicas());
  std::vector<optim::AdamW::Group> all;
  for (const OptimizerGroup& g : groups)
    all.push_back({g.parameters, {.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .weight_decay = g.weight_decay}});
  return std::make_unique<optim::AdamW>(all);
}

}  // namespace lockstep::train
