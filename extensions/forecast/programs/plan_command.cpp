// `lockstep plan`: predicts the memory, traffic and time of a training.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "base/suggest.h"
#include "extensions/figures/quantity.h"
#include "extensions/forecast/plan.h"
#include "extensions/forecast/programs/forecast_commands.h"
#include "extensions/schedules/draw.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;
using engine::RankBytes, engine::PlanForecast;

namespace {

struct PlanAsked {
  ModelAsked model;
  std::string config, plan;
  int ranks = 0;
  engine::Speeds speeds;  ///< speeds of the machine; 0: measured here
  bool json = false, units = false, step = false;
};

void print_row(const std::string& name, const std::vector<std::string>& cells) {
  fmt::print("  {:<20}", name);
  for (const std::string& cell : cells) fmt::print("{:>14}", cell);
  fmt::print("\n");
}

void print_row(const std::string& name, const RankBytes& b) {
  print_row(name, {bytes_text(double(b.parameters)), bytes_text(double(b.gradients)), bytes_text(double(b.optimizer)),
                   bytes_text(double(b.buffers)), bytes_text(double(b.total()))});
}

RankBytes formula_of(const engine::Forecast& stage) {
  return {.parameters = int64_t(stage.formula.parameters),
          .gradients = int64_t(stage.formula.gradients),
          .optimizer = int64_t(stage.formula.optimizer)};
}

Json bytes_json(const RankBytes& b) {
  return Json::Object{{"parameters", b.parameters},
                      {"gradients", b.gradients},
                      {"optimizer", b.optimizer},
                      {"buffers", b.buffers},
                      {"total", b.total()},
                      {"parameters_elsewhere", b.parameters_elsewhere},
                      {"optimizer_elsewhere", b.optimizer_elsewhere}};
}

Json units_json(const engine::Forecast& stage) {
  Json::Array units;
  for (const zero::PlannedUnit& u : stage.units) {
    Json::Array names;
    for (const size_t i : u.parameters) names.push_back(stage.model.parameters[i].name);
    units.push_back(Json::Object{{"module", u.module},
                                 {"parameters", std::move(names)},
                                 {"elements", u.layout.numel()},
                                 {"padding", u.layout.padding()},
                                 {"shard", u.layout.shard},
                                 {"owner", u.layout.owner},
                                 {"persistent", u.persistent}});
  }
  return units;
}

Json to_json(const PlanForecast& p, const engine::Speeds& speeds, const engine::PredictedTime& time) {
  Json::Array stages, bounds(p.bounds.begin(), p.bounds.end());
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const engine::Forecast& stage = p.stages[s];
    Json::Array ranks;
    for (const RankBytes& b : stage.bytes) ranks.push_back(bytes_json(b));
    stages.push_back(Json::Object{{"elements", stage.model.numel()},
                                  {"padding", stage.padding},
                                  {"formula", bytes_json(formula_of(stage))},
                                  {"bytes", std::move(ranks)},
                                  {"flops_of_token", p.flops[s]},
                                  {"traffic", Json::Object{{"gradients", stage.gradient_traffic},
                                                           {"parameters", stage.parameter_traffic},
                                                           {"pp", p.stage_traffic[s]},
                                                           {"cp", p.context_traffic[s]},
                                                           {"tp", p.tensor_parallel_traffic[s]},
                                                           {"ep", p.expert_traffic[s]}}},
                                  {"units", units_json(stage)}});
  }
  const engine::Config& c = p.config;
  return Json::Object{
      {"model", p.model.name},
      {"elements", p.model.numel()},
      {"plan", to_string(p.plan)},
      {"ranks", p.plan.ranks()},
      {"stage", c.zero_optimization.stage},
      {"optimizer", p.stages[0].optimizer},
      {"bounds", std::move(bounds)},
      {"stages", std::move(stages)},
      {"bubble", p.bubble},
      {"bubble_of_equal_stages", p.formula},
      {"speeds", Json::Object{{"flops", speeds.flops}, {"bandwidth", speeds.bandwidth}, {"memory", speeds.memory}}},
      {"seconds", Json::Object{{"compute", time.compute},
                               {"communication", time.communication},
                               {"optimizer", time.optimizer},
                               {"step", time.step}}},
      {"tokens_per_second", time.tokens},
      {"warnings", Json::Array(c.warnings.begin(), c.warnings.end())}};
}

/// Prints, for each unit of parameters that ZeRO gathers together, the elements that each rank owns. If there are many
/// ranks, prints the first three and the last.
void print_units(const engine::Forecast& plan) {
  fmt::print("\nwho owns what, elements\n");
  const int printed_ranks = plan.config.zero_optimization.stage == 0 ? 0 : std::min(plan.ranks, 4);
  for (size_t k = 0; k < plan.units.size(); ++k) {
    const zero::PlannedUnit& u = plan.units[k];
    const auto& names = u.parameters;
    fmt::print("  unit {:<4}{} elements, {} padding{}{}: {}{}\n", k, u.layout.numel(), u.layout.padding(),
               u.module.empty() ? "" : ", gathered by " + u.module,
               plan.config.zero_optimization.stage == 3 && u.persistent ? ", whole everywhere" : "",
               plan.model.parameters[names.front()].name,
               names.size() > 1
                   ? fmt::format(" and {} more to {}", names.size() - 1, plan.model.parameters[names.back()].name)
                   : "");
    for (int i = 0; i < printed_ranks; ++i) {
      const int rank = i + 1 == printed_ranks ? plan.ranks - 1 : i;
      std::string text;
      for (size_t place = 0; place < names.size(); ++place) {
        const dist::Range own = u.layout.owned(place, rank);
        if (own.size() == 0) continue;
        const bool is_full = own.size() == u.layout.sizes[place];
        text += (text.empty() ? "" : ", ") + plan.model.parameters[names[place]].name +
                (is_full ? "" : fmt::format("[{}:{}]", own.begin, own.end));
        if (text.size() > 200) {
          text += ", ...";
          break;
        }
      }
      fmt::print("    rank {:<4}{}\n", rank, text.empty() ? "nothing" : text);
    }
  }
}

/// Prints a step's list of actions for each rank of the first pipeline, or for each replica of a whole model. If there
/// are many, prints the first eight.
void print_step(const PlanForecast& p) {
  const int accumulation = int(*p.config.gradient_accumulation_steps);
  const int64_t stage = p.config.zero_optimization.stage;
  parallel::Lists lists;
  if (p.plan.pp > 1) lists = step_of(p.schedule);
  for (int replica = 0; p.plan.pp == 1 && replica < p.plan.dp; ++replica)
    lists.push_back(
        parallel::step_of({.count = p.plan.dp, .micro_batches = accumulation, .interleaved = stage >= 2}, replica));
  fmt::print(
      "\na step: d draw, F forward, B backward (B>: units leave while it runs), I W its halves, + add, a> <a "
      "activations, "
      "g> <g gradients\n");
  for (size_t rank = 0; rank < std::min<size_t>(lists.size(), 8); ++rank)
    fmt::print("  {} {:<4}{}\n", p.plan.pp > 1 ? "rank" : "replica", rank,
               to_string(lists[rank], p.plan.pp > 1 ? p.schedule.request.chunks : 1));
  if (p.plan.pp > 1) fmt::print("\n{}", draw_grid(p.schedule));
}

void print(const PlanForecast& p, const engine::Speeds& speeds, const engine::PredictedTime& time) {
  const engine::Config& c = p.config;
  const engine::Forecast& first = p.stages[0];
  const bool has_all_layers = p.plan.pp * p.plan.tp == 1;  // true: every rank has all layers
  const int64_t zero = c.zero_optimization.stage, accumulation = *c.gradient_accumulation_steps;
  const int64_t frozen = p.model.numel() - p.model.trained();
  fmt::print("{:<12}{}: {} parameters{}\n", "model", p.model.name, p.model.numel(),
             frozen > 0 ? fmt::format(", {} of them frozen", frozen) : "");
  fmt::print("{:<12}{}, {}: legal on {}; stage {}, {}, {}\n", "plan", to_string(p.plan), c.origin,
             counted(p.plan.ranks(), "rank"), zero, std::string(name_of(first.parameter_dtype)),
             first.optimizer + (c.optimizer.type.empty() ? " (assumed: the file names none)" : ""));
  if (p.plan.pp > 1)
    fmt::print("{:<12}{} of {} stages, cut at layers {}\n", "pipeline", c.pipeline.schedule, p.plan.pp,
               fmt::join(p.bounds, ", "));
  fmt::print("{:<12}{} samples a step = {} a micro-batch x {} micro-batches x {} replicas\n\n", "batch",
             *c.train_batch_size, *c.train_micro_batch_size_per_gpu, accumulation, p.plan.dp);

  print_row("bytes of a rank", {"parameters", "gradients", "optimizer", "buffers", "together"});
  int64_t padding = 0;
  size_t units = 0;
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const engine::Forecast& stage = p.stages[s];
    padding += stage.padding, units += stage.units.size();
    if (has_all_layers) print_row("formula", formula_of(stage));
    const RankBytes& fullest = stage.fullest();
    print_row(has_all_layers ? "with padding, most" : fmt::format("stage {}", s), fullest);
    if (fullest.parameters_elsewhere + fullest.optimizer_elsewhere > 0)
      print_row("offloaded", {.parameters = fullest.parameters_elsewhere, .optimizer = fullest.optimizer_elsewhere});
  }
  fmt::print("  Padding is {} elements in {} units. ", padding, units);
  if (zero == 3)
    fmt::print("Up to {} elements of a module, and what is gathered ahead, are whole at a time. ",
               first.largest_module);
  if (accumulation > 1) fmt::print("Sums of {} micro-batches take gradients more than once. ", accumulation);
  fmt::print("Activations come on top.\n\n");

  print_row("sent in a step", {"gradients", "parameters", "stages", "context", "tensor", "experts"});
  for (size_t s = 0; s < p.stages.size(); ++s)
    print_row(has_all_layers ? "each rank" : fmt::format("stage {}", s),
              {bytes_text(p.stages[s].gradient_traffic), bytes_text(p.stages[s].parameter_traffic),
               bytes_text(p.stage_traffic[s]), bytes_text(p.context_traffic[s]),
               bytes_text(p.tensor_parallel_traffic[s]), bytes_text(p.expert_traffic[s])});
  const int n = first.ranks;
  if (has_all_layers && n > 1)
    fmt::print(
        "  Gradients and parameters are {:.2f} times the model's bytes, times {}/{}.\n",
        p.data_parallel_traffic(0) * n / (double(p.model.numel()) * double(size_of(first.parameter_dtype)) * (n - 1)),
        n - 1, n);
  if (p.plan.pp > 1)
    fmt::print("\nbubble {:.2f} % with these stages, {:.2f} % with equal ones\n", 100 * p.bubble, 100 * p.formula);
  fmt::print("\ntime of a step: {}, {:.0f} {} a second\n", seconds_text(time.step), time.tokens, p.model.unit);
  fmt::print("  compute {} at {:.3g} FLOP/s a rank, communication {} at {}/s{}, optimizer {} at {}/s\n",
             seconds_text(time.compute), speeds.flops, seconds_text(time.communication), bytes_text(speeds.bandwidth),
             engine::overlaps(p) ? " meanwhile" : "", seconds_text(time.optimizer), bytes_text(speeds.memory));
}

void run(PlanAsked& o) {
  const ModelFound found = find_model(o.model);
  LOCKSTEP_CHECK(!o.config.empty() || !found.config.is_null(), "lockstep plan: expected --config FILE");
  const engine::Config config = o.config.empty() ? engine::config_from_json(found.config.dump(), o.model.program[0])
                                                 : engine::read_config(o.config);
  if (o.plan.empty() && o.ranks == 0) o.plan = found.plan;
  LOCKSTEP_CHECK(o.ranks > 0 || !o.plan.empty(), "lockstep plan: expected --ranks N, or --plan such as dp2+pp2+zero1");
  const PlanForecast plan = engine::plan_parts(
      config, found.shape, o.plan.empty() ? parallel::Plan{.dp = o.ranks} : parallel::parse_plan(o.plan));
  engine::Speeds speeds = o.speeds;
  if (!(speeds.flops > 0 && speeds.bandwidth > 0 && speeds.memory > 0)) {
    const engine::Speeds here = engine::measure_speeds(plan.stages[0].parameter_dtype);
    for (double engine::Speeds::*one : {&engine::Speeds::flops, &engine::Speeds::bandwidth, &engine::Speeds::memory})
      if (speeds.*one == 0) speeds.*one = here.*one;
  }
  const engine::PredictedTime time = engine::predict(plan, speeds);
  for (const std::string& warning : plan.config.warnings) std::cerr << "warning: " << warning << "\n";
  const Json values = to_json(config);
  if (const Json* const sparse = values.find("sparse_attention"); !o.config.empty() && sparse && sparse->is_object())
    std::cerr
        << "warning: sparse_attention: counted as dense attention; to count its blocks, run lockstep plan -- PROGRAM "
           "--config FILE\n";
  if (o.json) return void(std::cout << to_json(plan, speeds, time).dump() << std::endl);
  print(plan, speeds, time);
  for (const engine::Forecast& stage : plan.stages)
    if (o.units) print_units(stage);
  if (o.step) print_step(plan);
}

}  // namespace

void add_plan_command(CLI::App& app, Shared& shared) {
  shared.with_program.push_back("plan");
  const auto o = std::make_shared<PlanAsked>(PlanAsked{.model = {.program = shared.program}});
  CLI::App& command = *app.add_subcommand("plan",
                                          "estimates what a configuration costs, without starting ranks: validity, "
                                          "memory per rank, traffic and time of a step");
  command.footer("of a program: lockstep plan [OPTIONS] -- PROGRAM [ARGUMENTS...], with its model and configuration");
  const OptionGroup add(command);
  add("--config", o->config, "configuration file (DeepSpeed's), or its text; default: the program's");
  add("--model", o->model.name, "gpt: or llama:LAYERSxWIDTHxHEADS, or a config.json, in place of a program");
  auto* ranks = add("--ranks", o->ranks, "data-parallel ranks", integer(1, 65536));
  add("--plan", o->plan,
      "replicas (dp), pipeline stages (pp), context (cp), tensor (tp) and expert (ep) parallelism and ZeRO, in "
      "place of --ranks: dp2+pp2+cp2+tp2+ep2+zero1")
      ->excludes(ranks);
  add("--vocab", o->model.vocab, "tokens that the model knows", integer(1, 1 << 24));
  add("--context", o->model.context, "tokens of a sample", integer(1, 1 << 24));
  engine::ExpertShape& e = o->model.experts;
  auto* experts = add("--experts", e.experts, "experts instead of the MLP in some blocks (0: none)", integer(0, 65536))
                      ->capture_default_str();
  add("--top-k", e.top_k, "experts of each token", integer(1, 65536))->needs(experts);
  add("--expert-every", e.every, "which blocks have experts: the last of every N", integer(1, 10000))->needs(experts);
  add("--flops", o->speeds.flops, "FLOP/s of a rank; else measured here", number(1, 1e18));
  add("--bandwidth", o->speeds.bandwidth, "bytes/s that a rank sends; else a copy is measured here", number(1, 1e18));
  add("--memory-bandwidth", o->speeds.memory, "bytes/s of a rank's memory; else measured here", number(1, 1e18));
  add("--units", o->units, "who owns what, unit by unit");
  add("--step", o->step, "what each rank does in a step, action by action");
  add("--json", o->json, "one JSON object");
  command.callback([o, &command] {
    as_usage([&] {
      refuse_beside_program(command, {"--vocab", "--context", "--experts"}, o->model);
      run(*o);
    });
  });
}

}  // namespace apps
