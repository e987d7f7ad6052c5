// `lockstep simulate`: predicts the time of a collective on a network, or of a training step on absent ranks.
#include <fmt/format.h>

#include <cmath>
#include <iostream>

#include "base/suggest.h"
#include "base/threads.h"
#include "extensions/figures/quantity.h"
#include "extensions/forecast/programs/forecast_commands.h"
#include "extensions/forecast/step_model.h"
#include "extensions/schedules/programs/collective_options.h"
#include "train/model_format.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

namespace {

/// Adds an option whose value is a number with one of `units`.
CLI::Option* add_quantity(CLI::App& command, const std::string& option, auto& to, const Units& units,
                          const std::string& what) {
  return command.add_option_function<std::string>(
      option,
      [&to, &units, option](const std::string& text) {
        const std::optional<double> value = parse_quantity(text, units);
        std::string known;
        for (const auto& [name, factor] : units) known += " " + name;
        if (!value)
          throw UsageError(str(option, " expected a number of 0 or more and one of", known, ", such as 25",
                               units[units.size() / 2].first, ", got \"", text, "\""));
        to = *value;
      },
      what);
}

const Units time_units = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
const Units speed_units = {{"MB/s", 1e6},          {"GB/s", 1e9},      {"TB/s", 1e12},    {"MiB/s", 1048576.},
                           {"GiB/s", 1073741824.}, {"Mbit/s", 1.25e5}, {"Gbit/s", 1.25e8}};

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.2f} us", seconds * 1e6)
         : seconds < 1  ? fmt::format("{:.3f} ms", seconds * 1e3)
                        : fmt::format("{:.3f} s", seconds);
}

struct NetworkAsked {
  dist::NetworkLink between;
  std::optional<double> host_latency, host_bandwidth;
};

dist::Network network_of(const NetworkAsked& o, bool has_hosts) {
  if (!o.host_latency && !o.host_bandwidth) return {o.between, {}};
  LOCKSTEP_CHECK(has_hosts,
                 "--host-latency and --host-bandwidth need --hosts, the ranks of each host, such as --hosts 4,4");
  return {o.between, dist::NetworkLink{o.host_latency.value_or(o.between.latency),
                                       o.host_bandwidth.value_or(o.between.bandwidth)}};
}

/// The predicted cost of an algorithm. The fields formula and formula_seconds are null if the algorithm has no formula.
/// The simulated fields are null if there are too many transfers to simulate, unless `asked` is true.
Json row_of(dist::Algorithm algorithm, const dist::CollectiveRequest& request, int64_t bytes,
            const dist::Network& network, bool asked) {
  Json row = Json::Object{{"algorithm", std::string(name_of(algorithm))}};
  for (const char* key : {"seconds", "formula", "formula_seconds", "steps", "messages", "sent_max", "received_max"})
    row[key] = Json();
  if (const auto expected = network.within ? std::nullopt : dist::formula(algorithm, request, bytes, network.between)) {
    row["formula"] = expected->text;
    row["formula_seconds"] = expected->seconds;
  }
  if (!asked && !can_simulate(algorithm, request, network)) return row;
  const dist::NetworkSimulation s = simulate(algorithm, request, bytes, 1, network);
  row["seconds"] = s.seconds;
  row["steps"] = s.steps;
  row["messages"] = s.messages;
  row["sent_max"] = *std::max_element(s.sent.begin(), s.sent.end());
  row["received_max"] = *std::max_element(s.received.begin(), s.received.end());
  return row;
}

void print_simulation(CollectiveAsked asked, double size, const dist::Network& network, bool json) {
  const bool all = asked.algorithm.empty();
  if (all) asked.algorithm = "direct";  // supports every collective
  const auto [algorithm, request] = understand(asked);
  LOCKSTEP_CHECK(size <= 1e15, "--bytes expected 1000TB at most, got ", size / 1e12, "TB");
  const auto bytes = int64_t(std::llround(size));
  Json::Array rows;
  std::optional<Json> of_asked;
  for (const dist::Algorithm a : dist::all_algorithms()) {
    const bool is_asked = !all && a == algorithm;
    // On one host, the hierarchical algorithm does the same as the direct one.
    const bool pointless = uses_hosts(a) && request.hosts.empty();
    if (!is_asked && (pointless || !has_schedule(a, request.collective))) continue;
    rows.push_back(row_of(a, request, bytes, network, is_asked));
    if (is_asked) of_asked = rows.back();
  }
  const dist::NetworkLink& between = network.between;
  if (json) {
    Json result = Json::Object{{"collective", std::string(name_of(request.collective))},
                               {"ranks", request.ranks},
                               {"bytes", bytes},
                               {"latency", between.latency},
                               {"bandwidth", between.bandwidth}};
    if (of_asked) result["asked"] = *of_asked;
    result["algorithms"] = std::move(rows);
    fmt::print("{}\n", result.dump());
    return;
  }
  fmt::print("{} of {} bytes over {}; latency {}, bandwidth {:.4g} GB/s", name_of(request.collective), bytes,
             counted(request.ranks, "rank"), time_text(between.latency), between.bandwidth / 1e9);
  if (network.within)
    fmt::print("; within a host {}, {:.4g} GB/s", time_text(network.within->latency), network.within->bandwidth / 1e9);
  fmt::print("\n\n");
  if (of_asked) {
    const auto at = [&](const char* key) -> const Json& { return of_asked->at(key); };
    fmt::print("{}\n", at("algorithm").as_string());
    fmt::print("  predicted time    {}\n", time_text(at("seconds").as_number()));
    if (at("formula").is_string())
      fmt::print("  formula           {} = {}\n", at("formula").as_string(),
                 time_text(at("formula_seconds").as_number()));
    fmt::print("  steps             {}\n", at("steps").as_int());
    fmt::print("  messages          {}\n", at("messages").as_int());
    fmt::print("  bytes per rank    {} sent, {} received, at most\n\n", at("sent_max").as_int(),
               at("received_max").as_int());
  }
  fmt::print("{:<18}{:>14}{:>10}{:>22}   {}\n", "algorithm", "time", "steps", "sent by a rank", "formula");
  bool left_out = false;
  for (const Json& row : rows) {
    const bool known = row.at("seconds").is_number();
    left_out |= !known;
    const auto text = [&](const char* key) { return known ? std::to_string(row.at(key).as_int()) : "-"; };
    fmt::print("{:<18}{:>14}{:>10}{:>22}   {}\n", row.at("algorithm").as_string(),
               known ? time_text(row.at("seconds").as_number()) : "-", text("steps"), text("sent_max"),
               row.at("formula").is_string() ? row.at("formula").as_string() : "");
  }
  if (left_out) fmt::print("\n-: too many transfers to simulate one by one; use fewer ranks\n");
}

struct StepAsked {
  ModelAsked model;
  report::TrainingJob job{.micro_batch = 0, .micro_batches = 0};  ///< 0: the program's value, or 1
  report::Cluster cluster;
  std::string plan, schedule = "1f1b", dtype = "f32", measure;  ///< measure: "here", or a folder of traces
  double flops = 0, memory = 0, bucket_mib = 25;
  bool network_given = false;
  std::string origin = "given";  ///< where the costs come from
};

void add_step_options(CLI::App& command, StepAsked& o) {
  const OptionGroup add(command, "A training step");
  add("--model", o.model.name, "gpt: or llama:LAYERSxWIDTHxHEADS, or a config.json; or a program, after --");
  add("--plan", o.plan, "replicas (dp), pipeline stages (pp), tensor parallelism (tp) and ZeRO: dp8+pp4+tp2+zero1");
  add("--vocab", o.model.vocab, "tokens that the model knows", integer(1, 1 << 24));
  add("--context", o.model.context, "tokens of a sample", integer(1, 1 << 24));
  add("--micro-batch", o.job.micro_batch, "samples of a micro-batch (default: the program's, or 1)",
      integer(1, 1 << 20));
  add("--micro-batches", o.job.micro_batches,
      "micro-batches of a step, for each replica (default: the program's, or 1)", integer(1, 1 << 16));
  add("--schedule", o.schedule, "schedule of the pipeline: " + listed(pipeline::names_of_kinds()));
  add("--chunks", o.job.chunks, "chunks of a rank (interleaved)", integer(1, 64));
  add("--dtype", o.dtype, "dtype of parameters, gradients and activations: f32, bf16 or f16",
      CLI::IsMember({"f32", "bf16", "f16"}));
  add("--ranks-per-host", o.cluster.ranks_per_host,
      "ranks that reach each other by --host-latency and --host-bandwidth", integer(1, 65536));
  add("--flops", o.flops, "FLOP/s that a rank reaches; else --measure", number(1, 1e18));
  add("--memory-bandwidth", o.memory, "bytes/s that an optimizer reads and writes", number(1, 1e18));
  add("--measure", o.measure,
      "costs from this machine (here; about three seconds), or from the traces in a folder (a run of gpt with --trace)")
      ->expected(0, 1)
      ->default_str("here");
  add("--overlap-chunks", o.job.overlap_chunks,
      "chunks of tensor-parallel products, whose sums overlap with the next chunk (default: 4 where each has 1024 "
      "rows)",
      integer(1, 64));
  add("--bucket-mib", o.bucket_mib, "gradients that are reduced together", number(1e-3, 1e6));
  add("--recompute", o.job.recompute, "blocks run forward again in the backward");
  add("--overlap,!--no-overlap", o.job.overlap, "gradients are reduced while the backward runs (default)");
}

Json to_json(const report::StepPrediction& p, const StepAsked& o) {
  const report::TrainingJob& job = o.job;
  const dist::NetworkLink& between = o.cluster.network.between;
  Json::Array terms;
  for (const report::Term& t : p.terms)
    terms.push_back(Json::Object{{"name", t.name}, {"seconds", t.seconds}, {"how", t.explanation}});
  return Json::Object{{"plan", to_string(job.plan)},
                      {"ranks", job.plan.ranks()},
                      {"step", p.step},
                      {"bound", p.terms[p.bound].name},
                      {"tokens_per_second", p.tokens},
                      {"flops", p.flops},
                      {"bubble", p.bubble},
                      {"terms", std::move(terms)},
                      {"sent", Json::Object{{"gradients", p.gradient_bytes},
                                            {"parameters", p.parameter_bytes},
                                            {"tensor_parallel", p.tensor_bytes},
                                            {"messages", p.message_bytes}}},
                      {"memory", Json::Object{{"parameters", p.memory.parameters},
                                              {"gradients", p.memory.gradients},
                                              {"optimizer", p.memory.optimizer},
                                              {"buffers", p.memory.buffers}}},
                      {"costs", Json::Object{{"forward", p.forward},
                                             {"backward", p.backward},
                                             {"memory", o.memory},
                                             {"origin", o.origin},
                                             {"latency", between.latency},
                                             {"bandwidth", between.bandwidth}}}};
}

void print(const report::StepPrediction& p, const StepAsked& o) {
  const report::TrainingJob& job = o.job;
  const dist::Network& n = o.cluster.network;
  const auto link = [](const dist::NetworkLink& l) {
    return fmt::format("{} and {}/s", seconds_text(l.latency), bytes_text(l.bandwidth));
  };
  fmt::print("{}\n{}: {} ranks, {} on a host; {} micro-batches of {} for each replica{}\n", job.model.name,
             to_string(job.plan), job.plan.ranks(), std::min<int64_t>(o.cluster.ranks_per_host, job.plan.ranks()),
             job.micro_batches, job.micro_batch, job.plan.pp > 1 ? fmt::format(", {}", name_of(job.schedule)) : "");
  fmt::print("costs, {}: a micro-batch forward {}, backward {}; optimizer {}/s; network {}{}\n\n", o.origin,
             seconds_text(p.forward), seconds_text(p.backward), bytes_text(o.memory), link(n.between),
             n.within ? ", within a host " + link(*n.within) : "");
  fmt::print("  {:<18}{:>12}{:>9}   {}\n", "term", "time", "share", "from");
  for (const report::Term& t : p.terms)
    fmt::print("  {:<18}{:>12}{:>8.1f}%   {}\n", t.name, seconds_text(t.seconds), 100 * t.seconds / p.step,
               t.explanation);
  fmt::print("  {:<18}{:>12}{:>8}%   bound by: {}\n\n", "step", seconds_text(p.step), 100, p.terms[p.bound].name);
  fmt::print("{:.0f} {}/s, {:.3g} FLOP/s of a rank\n", p.tokens, job.model.unit,
             p.flops / p.step / double(job.plan.ranks()));
  fmt::print("sent by a rank in a step: gradients {}, parameters {}, tensor parallel {}, messages {}\n",
             bytes_text(p.gradient_bytes), bytes_text(p.parameter_bytes), bytes_text(p.tensor_bytes),
             bytes_text(p.message_bytes));
  fmt::print(
      "held by the fullest rank: parameters {}, gradients {}, optimizer {}, buffers {}; activations come on top\n",
      bytes_text(double(p.memory.parameters)), bytes_text(double(p.memory.gradients)),
      bytes_text(double(p.memory.optimizer)), bytes_text(double(p.memory.buffers)));
}

/// Finds the seconds that each layer of the job takes, by --flops or by measuring. If it measures, it also measures the
/// network, unless options describe it. Returns the memory bandwidth of the optimizer step, in bytes/s. Measurements on
/// this machine run on `here` ranks at once.
double find_costs(StepAsked& o, int here) {
  report::TrainingJob& job = o.job;
  const bool single = job.plan.ranks() == 1 || o.network_given;
  if (o.flops > 0) {
    LOCKSTEP_CHECK(o.memory > 0,
                   "--flops needs --memory-bandwidth, the bytes/s of the optimizer, such as --memory-bandwidth 2e12");
    report::give_seconds(job.model, o.flops);
    return o.memory;
  }
  LOCKSTEP_CHECK(!o.model.program.empty() || !train::model_options(o.model.name).rope,
                 "--measure with --model times GPT-2's layers only; for ", o.model.name,
                 " give the program instead: -- gpt train --model ", o.model.name);
  if (o.measure == "here") {
    if (o.model.program.empty()) report::measure_gpt(job.model, job.micro_batch, here);
    if (!single) o.cluster.network = {report::measure_link(std::max(2, here)), {}};
    o.origin = here > 1 ? fmt::format("measured here on {} ranks at once", here) : "measured here";
    return report::measure_memory(here);
  }
  LOCKSTEP_CHECK(!report::find_traces(o.measure).empty(), "--measure ", o.measure,
                 ": expected \"here\", or a folder with rank-N.json, which a run with --trace writes; found none");
  const report::RunFiles run = report::read_run(o.measure);
  for (const std::string& warning : run.warnings) std::cerr << "warning: " << warning << "\n";
  const auto size = [&](const char* key) { return run.settings.at(key, o.measure).as_int(o.measure); };
  const auto traced = o.model.program.empty() ? engine::shape_of<nn::GPT>({.vocab = size("vocab"),
                                                                           .context = size("context"),
                                                                           .layers = size("layers"),
                                                                           .width = size("width"),
                                                                           .heads = size("heads")})
                                              : job.model;
  if (!single) o.cluster.network = {report::link_of_traces(run.traces), {}};
  o.origin = "trace of " + counted(int64_t(run.traces.size()), "rank");
  return report::measure_run(run, traced, size("batch"), job.model);
}

void print_step(StepAsked o, bool json) {
  if (o.measure == "true" || (o.measure.empty() && o.flops == 0 && !o.model.program.empty())) o.measure = "here";
  ModelFound found;
  if (o.plan.empty() && !o.model.program.empty()) found = find_model(o.model), o.plan = found.plan;
  LOCKSTEP_CHECK(!o.plan.empty() && (!o.model.name.empty() || !o.model.program.empty()),
                 "a training step needs --plan, and --model or a program: --model gpt:12x768x12 --plan dp64+pp4");
  LOCKSTEP_CHECK((o.flops > 0) != !o.measure.empty(), "expected --flops, or --measure for costs of this machine, ",
                 o.flops > 0 ? "got both; leave one out" : "got neither; give one");
  report::TrainingJob& job = o.job;
  job.plan = parallel::parse_plan(o.plan);
  // Measure on as many ranks as will share a host, if this machine has the cores.
  const int max_ranks = std::min({job.plan.ranks(), o.cluster.ranks_per_host, int(get_threads())}),
            here = o.measure == "here" ? max_ranks : 1;
  if (found.shape.list.empty() || here > 1) found = find_model(o.model, here);
  job.model = found.shape;
  job.schedule = pipeline::parse_kind(o.schedule);
  job.dtype = parse_dtype(o.dtype);
  job.bucket_bytes = o.bucket_mib * 1048576;
  if (!found.config.is_null()) {
    const engine::Config config =
        engine::resolve(engine::config_from_json(found.config.dump(), o.model.program[0]), job.plan.dp);
    if (job.micro_batch == 0) job.micro_batch = *config.train_micro_batch_size_per_gpu;
    if (job.micro_batches == 0) job.micro_batches = *config.gradient_accumulation_steps;
    if (job.plan.zero < 0) job.plan.zero = int(config.zero_optimization.stage);
  }
  for (int64_t* count : {&job.micro_batch, &job.micro_batches}) *count = std::max<int64_t>(1, *count);
  const double found_memory = find_costs(o, here);
  if (o.memory == 0) o.memory = found_memory;
  const report::StepPrediction p = report::predict_step(job, o.memory, o.cluster);
  if (json) std::cout << to_json(p, o).dump() << std::endl;
  else print(p, o);
}

}  // namespace

void add_simulate_command(CLI::App& app, Shared& shared) {
  shared.with_program.push_back("simulate");
  struct Simulated {
    StepAsked step;
    CollectiveAsked collective;
    NetworkAsked network;
    double bytes = 1e8;
    bool json = false;
  };
  const auto o = std::make_shared<Simulated>(Simulated{.step = {.model = {.program = shared.program}}});
  CLI::App& command = *app.add_subcommand(
      "simulate", "predict how long a collective takes on a network, or a training step on many ranks");
  add_collective_options(command, o->collective, false);
  add_quantity(command, "--bytes", o->bytes, byte_units, "size of the data: 64KiB, 100MB (all_to_all: at each rank)")
      ->default_str("100MB");
  NetworkAsked& n = o->network;
  add_quantity(command, "--latency", n.between.latency, time_units, "latency of a message: 5us")->default_str("5us");
  add_quantity(command, "--bandwidth", n.between.bandwidth, speed_units,
               "bandwidth of a rank, each way: 25GB/s, 100Gbit/s")
      ->default_str("25GB/s");
  add_quantity(command, "--host-latency", n.host_latency, time_units,
               "between ranks of a host (--hosts); default: as --latency");
  add_quantity(command, "--host-bandwidth", n.host_bandwidth, speed_units,
               "between ranks of a host (--hosts); default: as --bandwidth");
  command.add_flag("--json", o->json, "one line, a JSON object");
  add_step_options(command, o->step);
  command.callback([o, &command] {
    as_usage([&] {
      StepAsked& step = o->step;
      const auto given = [&](const char* option) { return command.get_option(option)->count() > 0; };
      if (step.model.name.empty() && step.model.program.empty() && step.plan.empty()) {
        LOCKSTEP_CHECK(given("--ranks"),
                       "simulate needs --ranks for a collective, such as --ranks 4096, or for a training step --plan, "
                       "and --model or -- PROGRAM");
        return print_simulation(o->collective, o->bytes, network_of(o->network, !o->collective.hosts.empty()), o->json);
      }
      refuse_given(command, {"algorithm", "--ranks", "--collective", "--root", "--hosts", "--bytes"},
                   " is for a collective; for a step give --plan and --ranks-per-host instead");
      refuse_beside_program(command, {"--vocab", "--context"}, step.model);
      step.network_given = given("--latency") || given("--bandwidth");
      step.cluster.network = network_of(o->network, true);
      print_step(step, o->json);
    });
  });
}

}  // namespace apps
