#include "apps/step_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "apps/common/cli.h"
#include "data/json.h"
#include "performance/page.h"
#include "performance/step_model.h"
#include "tensor/check.h"
#include "tensor/threads.h"

namespace apps {

using namespace lockstep;
using data::Json;
using performance::bytes_text, performance::seconds_text;

namespace {

int heads_of(const std::string& model) { return std::stoi(model.substr(model.rfind('x') + 1)); }

Json to_json(const performance::StepPrediction& p, const performance::TrainingJob& job, const performance::StepCosts& c, const dist::Network& n) {
  Json::Array terms;
  for (const performance::Term& t : p.terms) terms.push_back(Json::Object{{"name", t.name}, {"seconds", t.seconds}, {"how", t.how}});
  return Json::Object{{"plan", to_string(job.layout)}, {"ranks", job.layout.ranks()}, {"step", p.step}, {"bound", p.terms[p.bound].name}, {"tokens_per_second", p.tokens}, {"flops", p.flops}, {"bubble", p.bubble},
                      {"terms", std::move(terms)}, {"sent", Json::Object{{"gradients", p.gradient_bytes}, {"parameters", p.parameter_bytes}, {"tensor_parallel", p.tensor_bytes}, {"messages", p.message_bytes}}},
                      {"memory", Json::Object{{"parameters", p.memory.parameters}, {"gradients", p.memory.gradients}, {"optimizer", p.memory.optimizer}, {"buffers", p.memory.buffers}}},
                      {"costs", Json::Object{{"block_forward", c.block_forward}, {"block_backward", c.block_backward}, {"head_forward", c.head_forward}, {"head_backward", c.head_backward}, {"memory", c.memory},
                                             {"origin", c.origin}, {"latency", n.between.latency}, {"bandwidth", n.between.bandwidth}}}};
}

void print(const performance::StepPrediction& p, const performance::TrainingJob& job, const performance::StepCosts& c, const performance::Cluster& cluster) {
  const auto& n = cluster.network;
  const auto link = [](const dist::Link& l) { return fmt::format("{} and {}/s", seconds_text(l.latency), bytes_text(l.bandwidth)); };
  fmt::print("{}\n{}: {} ranks, {} on a host; {} micro-batches of {} for each copy{}\n", job.model.name, to_string(job.layout), job.layout.ranks(), std::min<int64_t>(cluster.ranks_per_host, job.layout.ranks()),
             job.micro_batches, job.micro_batch, job.layout.pp > 1 ? fmt::format(", {}", name_of(job.schedule)) : "");
  fmt::print("costs, {}: a block forward {}, backward {}; head {}, {}; optimizer {}/s; network {}{}\n\n", c.origin, seconds_text(c.block_forward), seconds_text(c.block_backward), seconds_text(c.head_forward),
             seconds_text(c.head_backward), bytes_text(c.memory), link(n.between), n.within ? ", within a host " + link(*n.within) : "");
  fmt::print("  {:<18}{:>12}{:>9}   {}\n", "term", "time", "share", "from");
  for (const performance::Term& t : p.terms) fmt::print("  {:<18}{:>12}{:>8.1f}%   {}\n", t.name, seconds_text(t.seconds), 100 * t.seconds / p.step, t.how);
  fmt::print("  {:<18}{:>12}{:>8}%   bound by: {}\n\n", "step", seconds_text(p.step), 100, p.terms[p.bound].name);
  fmt::print("{:.0f} tokens/s, {:.3g} FLOP/s of a rank\n", p.tokens, p.flops / p.step / double(job.layout.ranks()));
  fmt::print("sent by a rank in a step: gradients {}, parameters {}, tensor parallel {}, messages {}\n", bytes_text(p.gradient_bytes), bytes_text(p.parameter_bytes), bytes_text(p.tensor_bytes), bytes_text(p.message_bytes));
  fmt::print("held by the fullest rank: parameters {}, gradients {}, optimizer {}, buffers {}; activations come on top\n", bytes_text(double(p.memory.parameters)), bytes_text(double(p.memory.gradients)),
             bytes_text(double(p.memory.optimizer)), bytes_text(double(p.memory.buffers)));
  std::fflush(stdout);
}

}  // namespace

void add_step_options(CLI::App& command, StepAsked& o) {
  const std::string group = "A training step";
  command.add_option("--model", o.model, "gpt:LAYERSxWIDTHxHEADS")->group(group);
  command.add_option("--plan", o.plan, "copies, stages, slices and ZeRO's stage: dp8+pp4+tp2+zero1")->group(group);
  command.add_option("--vocab", o.vocab, "tokens that the model knows")->check(whole(1, 1 << 24))->capture_default_str()->group(group);
  command.add_option("--context", o.context, "tokens of a sample")->check(whole(1, 1 << 24))->capture_default_str()->group(group);
  command.add_option("--micro-batch", o.micro_batch, "samples of a micro-batch")->check(whole(1, 1 << 20))->capture_default_str()->group(group);
  command.add_option("--micro-batches", o.micro_batches, "micro-batches of a step, for each copy of the model")->check(whole(1, 1 << 16))->capture_default_str()->group(group);
  command.add_option("--schedule", o.schedule, "of the pipeline: gpipe, 1f1b, interleaved, zb-h1 or dualpipe-v")->capture_default_str()->group(group);
  command.add_option("--chunks", o.chunks, "chunks of a rank (interleaved)")->check(whole(1, 64))->group(group);
  command.add_option("--dtype", o.dtype, "of parameters, gradients and activations: f32, bf16 or f16")->check(CLI::IsMember({"f32", "bf16", "f16"}))->capture_default_str()->group(group);
  command.add_option("--ranks-per-host", o.ranks_per_host, "ranks that reach each other by --host-latency and --host-bandwidth")->check(whole(1, 65536))->capture_default_str()->group(group);
  command.add_option("--flops", o.flops, "FLOP/s that a rank reaches; else --measure")->check(number(1, 1e18))->group(group);
  command.add_option("--memory-bandwidth", o.memory, "bytes/s that an optimizer reads and writes")->check(number(1, 1e18))->group(group);
  command.add_option("--measure", o.measure, "costs from this machine (here; about three seconds), or from the traces in a folder (a run of gpt with --trace)")->expected(0, 1)->default_str("here")->group(group);
  command.add_option("--bucket-mib", o.bucket_mib, "gradients that are reduced together")->check(number(1e-3, 1e6))->capture_default_str()->group(group);
  command.add_flag("--recompute", o.recompute, "blocks run forward again in the backward")->group(group);
  command.add_flag("--overlap,!--no-overlap", o.overlap, "gradients are reduced while the backward runs (default)")->group(group);
}

bool names_step(const StepAsked& o) { return !o.model.empty() || !o.plan.empty(); }

void print_step(const StepAsked& asked, const dist::Network& network, bool json) {
  StepAsked o = asked;
  if (o.measure == "true") o.measure = "here";  // without a value
  LOCKSTEP_CHECK(!o.model.empty() && !o.plan.empty(), "a training step needs --model and --plan, such as --model gpt:12x768x12 --plan dp64+pp4");
  performance::TrainingJob job{.model = engine::parse_model(o.model, o.vocab, o.context), .layout = performance::parse_layout(o.plan), .micro_batch = o.micro_batch, .micro_batches = o.micro_batches,
                               .schedule = pipeline::parse_kind(o.schedule), .chunks = o.chunks, .dtype = o.dtype == "bf16" ? bf16 : o.dtype == "f16" ? f16 : f32, .recompute = o.recompute, .overlap = o.overlap,
                               .bucket_bytes = o.bucket_mib * 1048576};
  LOCKSTEP_CHECK(heads_of(o.model) % job.layout.tp == 0, "--plan ", o.plan, ": expected heads that tp divides, got ", heads_of(o.model));
  LOCKSTEP_CHECK((o.flops > 0) != !o.measure.empty(), "expected --flops, or --measure for costs of this machine, ", o.flops > 0 ? "got both" : "got neither");
  performance::Cluster cluster{.network = network, .ranks_per_host = o.ranks_per_host};
  performance::StepCosts costs;
  if (o.flops > 0) {
    LOCKSTEP_CHECK(o.memory > 0, "--flops needs --memory-bandwidth, the bytes/s of the optimizer, such as --memory-bandwidth 2e12");
    costs = performance::costs_of_flops(job.model, o.micro_batch, o.flops, o.memory);
  } else if (o.measure == "here") {
    // As many at once as will share this machine, if it can hold them.
    const int here = int(std::min<int64_t>({job.layout.ranks(), o.ranks_per_host, get_threads()}));
    costs = performance::measure_costs(job.model, heads_of(o.model), o.micro_batch, here);
    if (!o.network_given && job.layout.ranks() > 1) cluster.network = {performance::measure_link(std::max(2, here)), {}};
  } else {
    std::vector<std::string> warnings;
    const auto traces = performance::read_traces(o.measure, warnings);
    LOCKSTEP_CHECK(!traces.empty(), "--measure ", o.measure, ": expected \"here\", or a folder with rank-N.json, which a run with --trace writes; found none");
    for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
    costs = performance::costs_of_traces(traces, job.model, o.micro_batch);
    if (!o.network_given && job.layout.ranks() > 1) cluster.network = {performance::link_of_traces(traces), {}};
  }
  if (o.memory > 0) costs.memory = o.memory;
  const performance::StepPrediction p = performance::predict_step(job, costs, cluster);
  if (json) std::cout << to_json(p, job, costs, cluster.network).dump() << std::endl;
  else print(p, job, costs, cluster);
}

}  // namespace apps
