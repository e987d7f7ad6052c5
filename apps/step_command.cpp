#include "apps/step_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <numeric>

#include "data/json.h"
#include "nn/hugging_face/pretrained.h"
#include "pipeline/schedule.h"
#include "report/page.h"
#include "report/step_model.h"
#include "tensor/check.h"
#include "tensor/suggest.h"
#include "tensor/threads.h"
#include "train/cli.h"

namespace apps {

using namespace lockstep::train;

using namespace lockstep;
using data::Json;
using report::bytes_text, report::seconds_text;

namespace {

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.); }

Json to_json(const report::StepPrediction& p, const report::TrainingJob& job, const report::StepCosts& c,
             const dist::Network& n) {
  Json::Array terms;
  for (const report::Term& t : p.terms)
    terms.push_back(Json::Object{{"name", t.name}, {"seconds", t.seconds}, {"how", t.how}});
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
                      {"costs", Json::Object{{"forward", sum_of(c.forward)},
                                             {"backward", sum_of(c.backward)},
                                             {"memory", c.memory},
                                             {"origin", c.origin},
                                             {"latency", n.between.latency},
                                             {"bandwidth", n.between.bandwidth}}}};
}

void print(const report::StepPrediction& p, const report::TrainingJob& job, const report::StepCosts& c,
           const report::Cluster& cluster) {
  const auto& n = cluster.network;
  const auto link = [](const dist::Link& l) {
    return fmt::format("{} and {}/s", seconds_text(l.latency), bytes_text(l.bandwidth));
  };
  fmt::print("{}\n{}: {} ranks, {} on a host; {} micro-batches of {} for each replica{}\n", job.model.name,
             to_string(job.plan), job.plan.ranks(), std::min<int64_t>(cluster.ranks_per_host, job.plan.ranks()),
             job.micro_batches, job.micro_batch, job.plan.pp > 1 ? fmt::format(", {}", name_of(job.schedule)) : "");
  fmt::print("costs, {}: a micro-batch forward {}, backward {}; optimizer {}/s; network {}{}\n\n", c.origin,
             seconds_text(sum_of(c.forward)), seconds_text(sum_of(c.backward)), bytes_text(c.memory), link(n.between),
             n.within ? ", within a host " + link(*n.within) : "");
  fmt::print("  {:<18}{:>12}{:>9}   {}\n", "term", "time", "share", "from");
  for (const report::Term& t : p.terms)
    fmt::print("  {:<18}{:>12}{:>8.1f}%   {}\n", t.name, seconds_text(t.seconds), 100 * t.seconds / p.step, t.how);
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
  std::fflush(stdout);
}

}  // namespace

void add_step_options(CLI::App& command, StepAsked& o) {
  const std::string group = "A training step";
  command
      .add_option("--model", o.model.name, "gpt: or llama:LAYERSxWIDTHxHEADS, or a config.json; or a program, after --")
      ->group(group);
  command
      .add_option("--plan", o.plan,
                  "replicas (dp), pipeline stages (pp), tensor parallelism (tp) and ZeRO: dp8+pp4+tp2+zero1")
      ->group(group);
  command.add_option("--vocab", o.model.vocab, "tokens that the model knows")
      ->check(whole(1, 1 << 24))
      ->capture_default_str()
      ->group(group);
  command.add_option("--context", o.model.context, "tokens of a sample")
      ->check(whole(1, 1 << 24))
      ->capture_default_str()
      ->group(group);
  command.add_option("--micro-batch", o.micro_batch, "samples of a micro-batch (default: the program's, or 1)")
      ->check(whole(1, 1 << 20))
      ->group(group);
  command
      .add_option("--micro-batches", o.micro_batches,
                  "micro-batches of a step, for each replica (default: the program's, or 1)")
      ->check(whole(1, 1 << 16))
      ->group(group);
  command.add_option("--schedule", o.schedule, "of the pipeline: " + listed(pipeline::names_of_kinds()))
      ->capture_default_str()
      ->group(group);
  command.add_option("--chunks", o.chunks, "chunks of a rank (interleaved)")->check(whole(1, 64))->group(group);
  command.add_option("--dtype", o.dtype, "of parameters, gradients and activations: f32, bf16 or f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--ranks-per-host", o.ranks_per_host,
                  "ranks that reach each other by --host-latency and --host-bandwidth")
      ->check(whole(1, 65536))
      ->capture_default_str()
      ->group(group);
  command.add_option("--flops", o.flops, "FLOP/s that a rank reaches; else --measure")
      ->check(number(1, 1e18))
      ->group(group);
  command.add_option("--memory-bandwidth", o.memory, "bytes/s that an optimizer reads and writes")
      ->check(number(1, 1e18))
      ->group(group);
  command
      .add_option("--measure", o.measure,
                  "costs from this machine (here; about three seconds), or from the traces in a folder (a run of gpt "
                  "with --trace)")
      ->expected(0, 1)
      ->default_str("here")
      ->group(group);
  command.add_option("--bucket-mib", o.bucket_mib, "gradients that are reduced together")
      ->check(number(1e-3, 1e6))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--recompute", o.recompute, "blocks run forward again in the backward")->group(group);
  command.add_flag("--overlap,!--no-overlap", o.overlap, "gradients are reduced while the backward runs (default)")
      ->group(group);
}

bool names_step(const StepAsked& o) { return !o.model.name.empty() || !o.model.program.empty() || !o.plan.empty(); }

namespace {

/// Costs of the job's parts, and the network where nobody gave it; here: ranks that measure at once.
report::StepCosts costs_of(const StepAsked& o, report::TrainingJob& job, int here, report::Cluster& cluster) {
  const bool alone = job.plan.ranks() == 1 || o.network_given;
  if (o.flops > 0) {
    LOCKSTEP_CHECK(o.memory > 0,
                   "--flops needs --memory-bandwidth, the bytes/s of the optimizer, such as --memory-bandwidth 2e12");
    return report::costs_of_flops(job.model, job.micro_batch, o.flops, o.memory);
  }
  LOCKSTEP_CHECK(!o.model.program.empty() || !nn::gpt_options(o.model.name).rope,
                 "--measure by the name of a model is "
                 "of GPT-2's layers; of ",
                 o.model.name, " give the program: -- gpt train --model ", o.model.name);
  if (o.measure == "here") {
    if (o.model.program.empty()) report::measure_gpt(job.model, job.micro_batch, here);
    if (!alone) cluster.network = {report::measure_link(std::max(2, here)), {}};
    report::StepCosts costs = report::costs_of_layers(job.model, job.micro_batch, report::measure_memory(here));
    if (here > 1) costs.origin += fmt::format(" on {} ranks at once", here);
    return costs;
  }
  std::vector<std::string> warnings;
  const auto traces = report::read_traces(o.measure, warnings);
  LOCKSTEP_CHECK(!traces.empty(), "--measure ", o.measure,
                 ": expected \"here\", or a folder with rank-N.json, which a run with --trace writes; found none");
  for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
  const Json settings = report::settings_of(traces);
  const auto size = [&](const char* key) { return settings.at(key, traces[0].path).as_int(traces[0].path); };
  const auto traced = o.model.program.empty() ? engine::shape_of<nn::GPT>({.vocab = size("vocab"),
                                                                           .context = size("context"),
                                                                           .layers = size("layers"),
                                                                           .width = size("width"),
                                                                           .heads = size("heads")})
                                              : job.model;
  if (!alone) cluster.network = {report::link_of_traces(traces), {}};
  return report::costs_of_traces(traces, traced, size("batch"), job.model, job.micro_batch);
}

}  // namespace

void print_step(const StepAsked& asked, const dist::Network& network, bool json) {
  StepAsked o = asked;
  if (o.measure == "true" || (o.measure.empty() && o.flops == 0 && !o.model.program.empty())) o.measure = "here";
  ModelFound found;
  if (o.plan.empty() && !o.model.program.empty()) found = find_model(o.model), o.plan = found.plan;
  LOCKSTEP_CHECK(!o.plan.empty() && (!o.model.name.empty() || !o.model.program.empty()),
                 "a training step needs --plan, and --model or a program: --model gpt:12x768x12 --plan dp64+pp4");
  LOCKSTEP_CHECK((o.flops > 0) != !o.measure.empty(), "expected --flops, or --measure for costs of this machine, ",
                 o.flops > 0 ? "got both" : "got neither");
  const parallel::Plan plan = parallel::parse_plan(o.plan);
  // As many at once as will share this machine, if it can hold them.
  const int here = o.measure == "here" ? std::min({plan.ranks(), o.ranks_per_host, int(get_threads())}) : 1;
  if (found.shape.list.empty() || here > 1) found = find_model(o.model, here);
  report::TrainingJob job{.model = found.shape,
                          .plan = plan,
                          .micro_batch = std::max<int64_t>(1, o.micro_batch),
                          .micro_batches = std::max<int64_t>(1, o.micro_batches),
                          .schedule = pipeline::parse_kind(o.schedule),
                          .chunks = o.chunks,
                          .dtype = o.dtype == "bf16"  ? bf16
                                   : o.dtype == "f16" ? f16
                                                      : f32,
                          .recompute = o.recompute,
                          .overlap = o.overlap,
                          .bucket_bytes = o.bucket_mib * 1048576};
  if (!found.config.is_null()) {
    const engine::Config config =
        engine::resolve(engine::config_from_json(found.config.dump(), o.model.program[0]), plan.dp);
    if (o.micro_batch == 0) job.micro_batch = *config.train_micro_batch_size_per_gpu;
    if (o.micro_batches == 0) job.micro_batches = *config.gradient_accumulation_steps;
    if (plan.zero < 0) job.plan.zero = int(config.zero_optimization.stage);
  }
  LOCKSTEP_CHECK(job.model.heads % plan.tp == 0, "--plan ", o.plan, ": expected heads that tp divides, got ",
                 job.model.heads);
  report::Cluster cluster{.network = network, .ranks_per_host = o.ranks_per_host};
  report::StepCosts costs = costs_of(o, job, here, cluster);
  if (o.memory > 0) costs.memory = o.memory;
  const report::StepPrediction p = report::predict_step(job, costs, cluster);
  if (json) std::cout << to_json(p, job, costs, cluster.network).dump() << std::endl;
  else print(p, job, costs, cluster);
}

}  // namespace apps
