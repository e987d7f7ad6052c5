// Jobs: options, configuration and plan of a training program. See job.h.
#include "train/job.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>

#include "base/check.h"
#include "dist/control.h"
#include "engine/engine.h"
#include "engine/section.h"
#include "tensor/backend.h"
#include "tensor/ops.h"
#include "train/action.h"
#include "train/cli.h"
#include "train/json_paths.h"
#include "train/option_group.h"

namespace lockstep::train {

using data::Json;

namespace {

/// The configuration file merged with --set. The value in KEY=VALUE is JSON if it parses, else a string.
Json json_of(const TrainOptions& o) {
  Json json = o.config.empty() ? Json(Json::Object{}) : engine::read_config_json(o.config);
  for (const std::string& one : o.set) {
    const size_t equals = one.find('=');
    LOCKSTEP_CHECK(equals != one.npos && equals > 0, "--set ", one,
                   ": expected KEY=VALUE such as zero_optimization.stage=2");
    const std::string text = one.substr(equals + 1);
    Json value(text);
    try {
      value = data::parse_json(text, "--set");
    } catch (const Error&) {}  // NOLINT: no JSON, so the value stays a string
    put_at(json, one.substr(0, equals), std::move(value));
  }
  return json;
}

/// The precision with this name that an extension adds; nullopt if there is none.
std::optional<engine::Precision> added_precision(const std::string& word) {
  for (engine::Precision& one : engine::precisions())
    if (one.word == word) return std::move(one);
  return std::nullopt;
}

/// The plan of all ranks, from --plan and the configuration.
parallel::Plan plan_of(const TrainOptions& o, const Json& json, int ranks) {
  parallel::Plan plan = parallel::parse_plan(o.plan.empty() ? "dp1" : o.plan);
  // Takes `value` from the file's `key`. Error if --plan gave another one; it gave none if `value` is `unsaid`.
  const auto agree = [&](const char* key, const char* what, auto& value, int64_t unsaid) {
    if (!is_said(json, key)) return;
    const int64_t there = find_at(json, key)->as_int(key);
    LOCKSTEP_CHECK(value == unsaid || value == there, what, " ", value, " contradicts the configuration, where ", key,
                   " is ", there, "; leave one of them out");
    value = int(there);
  };
  agree("zero_optimization.stage", "ZeRO stage", plan.zero, -1);
  LOCKSTEP_CHECK(o.parallel.offload == "none" || plan.zero > 0, "--offload ", o.parallel.offload,
                 " needs ZeRO: --plan zero1, zero2 or zero3");
  // A program that performs an action trains nothing, so any plan will do.
  if (asked_action()) return {.dp = ranks, .zero = plan.zero};
  agree("pipeline.stages", "stages", plan.pp, 1);
  if (o.plan.find("dp") == o.plan.npos && plan.ranks() > 0 && ranks % plan.ranks() == 0)
    plan.dp = ranks / plan.ranks();  // replicas fill the remaining ranks
  check_plan(plan, {.ranks = ranks});
  return plan;
}

}  // namespace

TrainJob::TrainJob(const TrainOptions& options, const Team& team)
    : options_(options),
      team_(team),
      device_(device_of(options, team)),
      json_(as_usage([&] { return json_of(options); })) {
  if (!team.group() && !dist::is_initialized()) dist::init(dist::Rendezvous{}), world_.made = true;
  dist::ProcessGroup& world = team.group() ? *team.group() : dist::world();
  mesh_ = std::make_unique<parallel::Mesh>(as_usage([&] { return plan_of(options, json_, world.size()); }), world);
  if (options.precision == "auto") choose_precision();
  set_float32_matmul_precision(options.precision == "tf32" ? MatmulPrecision::tf32 : MatmulPrecision::full);
}

TrainJob::OwnWorld::~OwnWorld() {
  if (made) dist::shutdown();
}

std::vector<Device> TrainJob::devices() const {
  const int count = options_.parallel.devices;
  std::vector<Device> all = all_devices(device_.type);
  LOCKSTEP_CHECK(count <= int(all.size()), "--parallel dp:", count, ": expected at most ", all.size(),
                 ", the number of devices");
  if (count > 0) all.resize(size_t(count));
  LOCKSTEP_CHECK(device_ == all[0], "--parallel dp starts at the first device, ", all[0], ", got ", device_,
                 "; give --device ", all[0]);
  return all;
}

std::string TrainJob::origin() const {
  return options_.config.empty() || options_.config.find('{') != options_.config.npos ? "the options" : options_.config;
}

/// Replaces --precision auto: by bf16 if all ranks' devices have tensor cores for bf16 and the file names no precision,
/// else by f32.
void TrainJob::choose_precision() {
  options_.precision = "f32";
  std::vector<std::string> keys{"fp16.enabled", "bf16.enabled", "bfloat16.enabled"};
  for (const engine::Precision& added : engine::precisions())
    keys.insert(keys.end(), added.keys.begin(), added.keys.end());
  for (const std::string& key : keys)
    if (is_said(json_, key)) return;
  if (device_.is_cpu()) return;
  std::vector<double> without{multiplies_bf16(device_) ? 0. : 1.};
  team_.sum(without, "devices without bf16");
  if (without[0] > 0) return;
  options_.precision = "bf16", by_device_ = true;
}

void TrainJob::print_precision() const {
  if (!by_device_ || !talks()) return;
  std::cout << "precision bf16 (the default on this card; --precision f32 chooses f32)" << std::endl;
}

std::string TrainJob::half() const {
  const std::string& asked = options_.precision;
  if (asked == "bf16" || added_precision(asked)) return find_at(json_, "bfloat16") ? "bfloat16" : "bf16";
  return asked == "f16" && is_auto(json_, "fp16.enabled") ? "fp16" : "";
}

std::optional<DType> TrainJob::autocast() const {
  return options_.precision == "f16" && half().empty() ? std::optional(f16) : std::nullopt;
}

engine::Config TrainJob::config(const Json& own, const ProgramValues& values) const {
  return as_usage([&] {
    const Json json = config_json(own, values);
    const std::string asked = options_.precision;
    const bool is_given = options_.is_given("precision"), other = asked == "tf32" || (asked == "f32" && is_given);
    std::vector<std::pair<std::string, bool>> wrong{{"fp16.enabled", other || (asked != "f32" && half() != "fp16")},
                                                    {"bf16.enabled", other || asked == "f16"},
                                                    {"bfloat16.enabled", other || asked == "f16"}};
    for (const engine::Precision& added : engine::precisions())
      for (const std::string& key : added.keys) wrong.emplace_back(key, is_given && asked != added.word);
    for (const auto& [key, is_wrong] : wrong) {
      const Json* const enabled = find_at(json, key);
      LOCKSTEP_CHECK(!is_wrong || !enabled || !(*enabled == Json(true)), options_.name_of("--precision " + asked),
                     " contradicts the configuration, where ", key, " is true; leave one of them out");
    }
    return engine::config_from_json(json.dump(), origin());
  });
}

engine::Config TrainJob::config(const Json& own) const { return config(own, {}); }

Json TrainJob::config_json(const Json& own, const ProgramValues& values) const {
  const TrainOptions& o = options_;
  Json json = json_;
  Contradictions problems;
  // Writes the argument `name` to `key`, unless the file has the key: then notes a contradiction if both differ.
  const auto put_argument = [&](const std::string& name, bool is_given, const char* key, Json value) {
    if (!is_said(json, key)) return put_at(json, key, std::move(value));
    if (is_given && !same_value(*find_at(json, key), value)) problems.differ(key, *find_at(json, key), name, value);
  };
  const auto put = [&](const char* option, const char* key, Json value) {
    put_argument(o.name_of(str("--", option)), o.is_given(option), key, std::move(value));
  };
  return as_usage([&] {
    const bool sized = is_said(json, "train_batch_size"), micro_given = values.micro_batch || o.is_given("batch"),
               accumulation_given = values.accumulation || o.is_given("accumulate");
    const int64_t micro = values.micro_batch.value_or(o.batch),
                  accumulation = values.accumulation.value_or(o.parallel.accumulate);
    if (micro_given || !sized)
      put_argument(values.micro_batch ? "per_device_train_batch_size" : "--batch", micro_given,
                   "train_micro_batch_size_per_gpu", micro);
    if (accumulation_given || !sized)
      put_argument(values.accumulation ? "gradient_accumulation_steps" : o.name_of("--accumulate"), accumulation_given,
                   "gradient_accumulation_steps", accumulation);
    if (sized && micro_given && accumulation_given)
      put_argument("train_batch_size (calculated)", true, "train_batch_size", micro * accumulation * plan().dp);
    put("seed", "seed", int64_t(o.seed));
    if (const auto added = added_precision(o.precision))
      for (const std::string& key : added->keys) put("precision", key.c_str(), true);
    const std::string half_section = half();
    if (half_section.starts_with("b"))
      put_argument(o.name_of("--precision " + o.precision), o.precision == "bf16", (half_section + ".enabled").c_str(),
                   true);
    if (!half_section.empty() && !is_said(json, half_section + ".auto_cast"))
      put_at(json, half_section + ".auto_cast", true);
    put("plan", "zero_optimization.stage", std::max(plan().zero, 0));
    if (const std::string& offload = o.parallel.offload; offload != "none") {
      for (const char* what : {"optimizer", "param"}) {
        if (*what == 'p' && plan().zero < 3) continue;
        const std::string section = str("zero_optimization.offload_", what, ".");
        put("offload", (section + "device").c_str(), offload.substr(0, offload.find(':')));
        if (offload.starts_with("nvme:")) put("offload", (section + "nvme_path").c_str(), offload.substr(5));
        if (*what == 'p') put("offload", (section + "max_in_cpu").c_str(), 0);
      }
    }
    for (const auto& [key, value] : own.as_object())
      if (!find_at(json, key)) put_at(json, key, value);
    for (const ConfigStep step : config_steps())
      step({.json = json,
            .values = values,
            .own = own,
            .ranks = plan().dp,
            .half = half(),
            .steps_option = o.name_of("--steps"),
            .problems = problems});
    for (const auto& [key, value] : own.as_object())
      if (!is_said(json, key)) put_at(json, key, value);
    problems.fail_if_any(origin());
    return json;
  });
}

engine::InitializeArgs prepare_args(TrainJob& job, nn::Module& model, optim::Optimizer& optimizer,
                                    data::DatasetPtr<data::Example> data, optim::Schedule* schedule,
                                    const PrepareOptions& options, ProgramValues values) {
  LOCKSTEP_CHECK(job.plan().pp * job.plan().tp == 1,
                 "[prepare] expected a plan that leaves the model whole (dp, cp, ZeRO), got ", to_string(job.plan()),
                 "; a Trainer runs pp and tp");
  LOCKSTEP_CHECK(job.autocast() != f16 || options.grad_scaler, "[prepare] expected a grad_scaler with ",
                 job.options().name_of("--precision f16"),
                 ", got none: small gradients would be lost; set fp16.enabled, or use bf16");
  job.print_precision();
  model.to(job.device());
  values.model = &model;
  values.optimizer = [&optimizer] { return &optimizer; };
  values.optimizer_is_argument = true;
  if (options.warmup_steps > 0) values.warmup_steps = options.warmup_steps;
  if (!values.steps)
    values.steps = [&job, size = data ? data->size() : 0](int64_t train_batch) {
      const TrainOptions& o = job.options();
      return o.steps > 0 ? o.steps : (size + train_batch - 1) / train_batch * o.epochs;
    };
  if (const CommandAction* const action = asked_action()) {
    Training training{.job = job, .model = model, .own = options.config, .values = values, .optimizer = &optimizer};
    if (data) training.batch = [&](int64_t samples) { return first_of(*data, samples); };
    perform(*action, training);
  }
  return {.optimizer = &optimizer,
          .training_data = std::move(data),
          .lr_scheduler = schedule,
          .config = job.config(options.config, values),
          .mesh = &job.mesh(),
          .autocast = job.autocast(),
          .grad_scaler = options.grad_scaler,
          .graphs = !job.options().no_graph};
}

engine::InitializeArgs prepare_args(TrainJob& job, nn::Module& model, optim::Optimizer& optimizer,
                                    data::DatasetPtr<data::Example> data, optim::Schedule* schedule,
                                    const PrepareOptions& options) {
  return prepare_args(job, model, optimizer, std::move(data), schedule, options, {});
}

void start(const TrainOptions& options, const std::string& identity, const Body& body) {
  TrainOptions o = options;
  const Json json = as_usage([&] { return json_of(o); });
  if (!o.is_given("seed") && is_said(json, "seed"))
    o.seed = uint64_t(as_usage([&] { return json.at("seed").as_int("seed"); }));  // model initialization uses it, too
  apply_common_options(o);
  o.parallel.identity = identity;
  const CommandAction* const action = asked_action();
  if (action) {  // train nothing, write nothing
    o.out.clear(), o.parallel.trace.clear(), o.parallel.trace_bits.clear();
    o.resume = false, o.save_every = 0;
    o.parallel.strategy = "auto", o.parallel.ranks = std::max(1, o.parallel.ranks);
  }
  if (!o.plan.empty() && o.parallel.strategy == "none") o.parallel.strategy = "auto";
  as_usage([&] {  // before any rank starts
    const int ranks = o.parallel.ranks > 0    ? o.parallel.ranks
                      : engine::is_launched() ? dist::Rendezvous::from_environment().world_size
                                              : 1;
    plan_of(o, json, ranks);
    LOCKSTEP_CHECK(o.save_every == 0 || !o.out.empty(), o.name_of("--save-every"), " ", o.save_every, " needs ",
                   o.name_of("--out"), " DIR, a place for the checkpoints");
  });
  run_team(o.parallel, [&](Team& team) {
    TrainJob job(o, team);
    try {
      body(job);
    } catch (const Performed&) { return; }
    LOCKSTEP_CHECK(!action,
                   "the program ended without creating a train::Trainer or calling train::prepare(), and so did not ",
                   action->what, "; do one of them before the end");
  });
}

int run(CLI::App& app, int argc, char** argv, TrainOptions& options, const Body& body) {
  app.callback([&] { start(options, identity_of(app), body); });
  return run_cli(app, argc, argv);
}

int program(int argc, char** argv, const std::string& about, const std::vector<ProgramOption>& own, const Body& body,
            TrainOptions options) {
  const std::string path = argc > 0 ? argv[0] : "program";
  CLI::App app(about, path.substr(path.rfind('/') + 1));
  add_options(app, options);
  const OptionGroup add(app);
  const auto add_own = [&]<class T>(const ProgramOption& one, T* to) {
    OptionCheck check = [](const std::string&) { return std::string(); };
    if constexpr (std::is_integral_v<T>)
      check = integer(int64_t(std::numeric_limits<T>::min()),
                      std::is_same_v<T, uint64_t> ? INT64_MAX : int64_t(std::numeric_limits<T>::max()));
    add(one.names, *to, one.help, one.check ? one.check : check)->required(one.required);
  };
  try {
    for (const ProgramOption& one : own) std::visit([&](auto* to) { add_own(one, to); }, one.to);
  } catch (const CLI::ConstructionError& error) {  // a wrong name, or one that all training programs have
    std::cerr << "error: [program] expected another name for an option, got: " << error.what() << "; rename it\n";
    return 2;
  }
  return run(app, argc, argv, options, body);
}

int run(int argc, char** argv, const std::string& about, const Body& body, TrainOptions options) {
  return program(argc, argv, about, {}, body, std::move(options));
}

}  // namespace lockstep::train
