#include "apps/plan_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "apps/common/cli.h"
#include "engine/plan.h"
#include "engine/plan_parts.h"
#include "tensor/check.h"

namespace apps {

using namespace lockstep;
using data::Json;
using engine::RankBytes;

namespace {

std::string bytes_text(double bytes) {
  const char* units[] = {"bytes", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(units)) bytes /= 1000, ++unit;
  return unit ? fmt::format("{:.2f} {}", bytes, units[unit]) : fmt::format("{:.0f} bytes", bytes);
}

std::string seconds_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6) : seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

void print_row(const char* name, double parameters, double gradients, double optimizer, double buffers) {
  fmt::print("  {:<20}{:>14}{:>14}{:>14}{:>14}{:>14}\n", name, bytes_text(parameters), bytes_text(gradients), bytes_text(optimizer), buffers < 0 ? "" : bytes_text(buffers),
             bytes_text(parameters + gradients + optimizer + std::max(buffers, 0.)));
}

Json bytes_json(const RankBytes& b) {
  return Json::Object{{"parameters", b.parameters}, {"gradients", b.gradients}, {"optimizer", b.optimizer}, {"buffers", b.buffers}, {"total", b.total()},
                      {"parameters_elsewhere", b.parameters_elsewhere}, {"optimizer_elsewhere", b.optimizer_elsewhere}};
}

Json to_json(const engine::Plan& plan, const engine::Speeds& speeds, const engine::PredictedTime& time) {
  Json::Array ranks, units;
  for (const RankBytes& b : plan.bytes) ranks.push_back(bytes_json(b));
  for (const engine::PlannedUnit& u : plan.units) {
    Json::Array names;
    for (const size_t i : u.parameters) names.push_back(plan.model.parameters[i].name);
    units.push_back(Json::Object{{"module", u.module}, {"parameters", std::move(names)}, {"elements", u.layout.numel()}, {"padding", u.layout.padding()}, {"shard", u.layout.shard}, {"owner", u.layout.owner},
                                 {"persistent", u.persistent}});
  }
  Json::Array warnings(plan.config.warnings.begin(), plan.config.warnings.end());
  return Json::Object{{"model", plan.model.name}, {"elements", plan.model.numel()}, {"ranks", plan.ranks}, {"stage", plan.config.zero_optimization.stage}, {"optimizer", plan.optimizer},
                      {"padding", plan.padding}, {"formula", Json::Object{{"parameters", plan.formula.parameters}, {"gradients", plan.formula.gradients}, {"optimizer", plan.formula.optimizer}}},
                      {"bytes", std::move(ranks)}, {"traffic", Json::Object{{"gradients", plan.gradient_traffic}, {"parameters", plan.parameter_traffic}}},
                      {"speeds", Json::Object{{"flops", speeds.flops}, {"bandwidth", speeds.bandwidth}, {"memory", speeds.memory}}},
                      {"seconds", Json::Object{{"compute", time.compute}, {"communication", time.communication}, {"optimizer", time.optimizer}, {"step", time.step}}},
                      {"tokens_per_second", time.tokens}, {"units", std::move(units)}, {"warnings", std::move(warnings)}};
}

/// Who has what of each unit. Of many ranks the first and the last.
void print_units(const engine::Plan& plan) {
  fmt::print("\nwho owns what, elements\n");
  const int shown_ranks = plan.config.zero_optimization.stage == 0 ? 0 : std::min(plan.ranks, 4);
  for (size_t k = 0; k < plan.units.size(); ++k) {
    const engine::PlannedUnit& u = plan.units[k];
    const auto& names = u.parameters;
    fmt::print("  unit {:<4}{} elements, {} padding{}{}: {}{}\n", k, u.layout.numel(), u.layout.padding(), u.module.empty() ? "" : ", gathered by " + u.module,
               plan.config.zero_optimization.stage == 3 && u.persistent ? ", whole everywhere" : "", plan.model.parameters[names.front()].name,
               names.size() > 1 ? fmt::format(" and {} more to {}", names.size() - 1, plan.model.parameters[names.back()].name) : "");
    for (int i = 0; i < shown_ranks; ++i) {
      const int rank = i + 1 == shown_ranks ? plan.ranks - 1 : i;
      std::string text;
      for (size_t place = 0; place < names.size(); ++place) {
        const dist::Range own = u.layout.owned(place, rank);
        if (own.size() == 0) continue;
        const bool whole = own.size() == u.layout.sizes[place];
        text += (text.empty() ? "" : ", ") + plan.model.parameters[names[place]].name + (whole ? "" : fmt::format("[{}:{}]", own.begin, own.end));
        if (text.size() > 200) {
          text += ", ...";
          break;
        }
      }
      fmt::print("    rank {:<4}{}\n", rank, text.empty() ? "nothing" : text);
    }
  }
}

void print(const engine::Plan& plan, const engine::Speeds& speeds, const engine::PredictedTime& time) {
  const engine::Config& c = plan.config;
  const int64_t stage = c.zero_optimization.stage, accumulation = *c.gradient_accumulation_steps;
  fmt::print("{:<12}{}: {} parameters\n", "model", plan.model.name, plan.model.numel());
  fmt::print("{:<12}{}: legal on {} rank{}; stage {}, {}, {}\n", "config", c.origin, plan.ranks, plan.ranks == 1 ? "" : "s", stage, std::string(name_of(plan.parameter_dtype)),
             plan.optimizer + (c.optimizer.type.empty() ? " (assumed: the file names none)" : ""));
  fmt::print("{:<12}{} samples a step = {} a micro-batch x {} micro-batches x {} ranks\n\n", "batch", *c.train_batch_size, *c.train_micro_batch_size_per_gpu, accumulation, plan.ranks);

  const auto most = std::max_element(plan.bytes.begin(), plan.bytes.end(), [](const RankBytes& a, const RankBytes& b) { return a.total() < b.total(); });
  fmt::print("  {:<20}{:>14}{:>14}{:>14}{:>14}{:>14}\n", "bytes of a rank", "parameters", "gradients", "optimizer", "buffers", "together");
  print_row("formula", plan.formula.parameters, plan.formula.gradients, plan.formula.optimizer, -1);
  print_row("with padding, most", double(most->parameters), double(most->gradients), double(most->optimizer), double(most->buffers));
  if (most->parameters_elsewhere + most->optimizer_elsewhere > 0) print_row("offloaded", double(most->parameters_elsewhere), 0, double(most->optimizer_elsewhere), -1);
  fmt::print("  Padding is {} elements in {} units. ", plan.padding, plan.units.size());
  if (stage == 3) fmt::print("Up to {} elements of a module, and what is gathered ahead, are whole at a time. ", plan.largest_module);
  if (accumulation > 1) fmt::print("Sums of {} micro-batches take gradients more than once. ", accumulation);
  fmt::print("Activations come on top.\n\n");

  const double psi_bytes = double(plan.model.numel()) * double(size_of(plan.parameter_dtype)) * (plan.ranks - 1) / plan.ranks;
  fmt::print("sent by each rank in a step: gradients {}, parameters {}", bytes_text(plan.gradient_traffic), bytes_text(plan.parameter_traffic));
  if (psi_bytes > 0) fmt::print("; together {:.2f} times the model's bytes, times {}/{}", (plan.gradient_traffic + plan.parameter_traffic) / psi_bytes, plan.ranks - 1, plan.ranks);
  fmt::print("\n\ntime of a step: {}, {:.0f} tokens a second\n", seconds_text(time.step), time.tokens);
  fmt::print("  compute {} at {:.3g} FLOP/s a rank, communication {} at {}/s{}, optimizer {} at {}/s\n", seconds_text(time.compute), speeds.flops, seconds_text(time.communication), bytes_text(speeds.bandwidth),
             c.zero_optimization.overlap_comm.value_or(true) ? " meanwhile" : "", seconds_text(time.optimizer), bytes_text(speeds.memory));
}

Json to_json(const engine::PartsPlan& p, const engine::PredictedTime& time) {
  Json::Array stages, bounds(p.bounds.begin(), p.bounds.end());
  for (size_t s = 0; s < p.stages.size(); ++s) {
    Json::Array ranks;
    for (const RankBytes& b : p.stages[s].bytes) ranks.push_back(bytes_json(b));
    stages.push_back(Json::Object{{"elements", p.stages[s].model.numel()}, {"bytes", std::move(ranks)}, {"flops_of_token", p.flops[s]},
                                  {"traffic", Json::Object{{"dp", p.copy_traffic(s)}, {"pp", p.stage_traffic[s]}, {"cp", p.context_traffic[s]}, {"tp", p.slice_traffic[s]}, {"ep", p.expert_traffic[s]}}}});
  }
  return Json::Object{{"model", p.model.name}, {"plan", to_string(p.plan)}, {"ranks", p.plan.ranks()}, {"bounds", std::move(bounds)}, {"stages", std::move(stages)}, {"bubble", p.bubble}, {"bubble_of_equal_stages", p.formula},
                      {"seconds", Json::Object{{"compute", time.compute}, {"communication", time.communication}, {"optimizer", time.optimizer}, {"step", time.step}}}, {"tokens_per_second", time.tokens}};
}

void print(const engine::PartsPlan& p, const engine::PredictedTime& time) {
  const engine::Config& c = p.config;
  fmt::print("{:<12}{}: {} parameters\n", "model", p.model.name, p.model.numel());
  fmt::print("{:<12}{}: legal on {} ranks, numbered copy by copy, stage by stage, part of a sequence by part, slice by slice\n", "plan", to_string(p.plan), p.plan.ranks());
  std::string cuts;
  for (const int b : p.bounds) cuts += fmt::format("{}{}", cuts.empty() ? "" : ", ", b);
  fmt::print("{:<12}{} of {} stages, cut at layers {} (tokens, positions, blocks, norm, head)\n", "pipeline", c.pipeline.schedule, p.plan.pp, cuts);
  fmt::print("{:<12}{} samples a step = {} a micro-batch x {} micro-batches x {} copies\n\n", "batch", *c.train_batch_size, *c.train_micro_batch_size_per_gpu, *c.gradient_accumulation_steps, p.plan.dp);
  fmt::print("  {:<20}{:>14}{:>14}{:>14}{:>14}{:>14}\n", "bytes of a rank", "parameters", "gradients", "optimizer", "buffers", "together");
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const auto& bytes = p.stages[s].bytes;
    const auto most = std::max_element(bytes.begin(), bytes.end(), [](const RankBytes& a, const RankBytes& b) { return a.total() < b.total(); });
    print_row(fmt::format("stage {}", s).c_str(), double(most->parameters), double(most->gradients), double(most->optimizer), double(most->buffers));
  }
  fmt::print("  Gradients are there twice while copies add them up. Activations come on top.\n\n  {:<20}{:>14}{:>14}{:>14}{:>14}{:>14}\n", "sent in a step", "to copies", "to stages", "by the ring", "to slices", "to experts");
  for (size_t s = 0; s < p.stages.size(); ++s) fmt::print("  {:<20}{:>14}{:>14}{:>14}{:>14}{:>14}\n", fmt::format("stage {}", s), bytes_text(p.copy_traffic(s)), bytes_text(p.stage_traffic[s]), bytes_text(p.context_traffic[s]), bytes_text(p.slice_traffic[s]), bytes_text(p.expert_traffic[s]));
  if (p.plan.pp > 1) fmt::print("\nbubble {:.2f} % with these stages, {:.2f} % with equal ones\n", 100 * p.bubble, 100 * p.formula);
  fmt::print("\ntime of a step: {}, {:.0f} tokens a second\n  compute {} at the slowest stage, communication {}, optimizer {}\n", seconds_text(time.step), time.tokens, seconds_text(time.compute), seconds_text(time.communication),
             seconds_text(time.optimizer));
}

}  // namespace

PlanCommand::PlanCommand(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("plan", "says what a configuration will cost: legality, memory of each rank, traffic and time of a step; starts no rank");
  command.add_option("--config", config_, "configuration file (DeepSpeed's), or its text")->required();
  command.add_option("--model", model_, "gpt:LAYERSxWIDTHxHEADS")->required();
  auto* ranks = command.add_option("--ranks", ranks_, "data-parallel ranks")->check(whole(1, 65536));
  auto* axes = command.add_option("--plan", plan_, "copies, stages, parts of sequences, slices, experts and ZeRO in place of --ranks: dp2+pp2+cp2+tp2+ep2+zero1")->excludes(ranks);
  command.add_option("--vocab", vocab_, "tokens that the model knows")->check(whole(1, 1 << 24))->capture_default_str();
  command.add_option("--context", context_, "tokens of a sample")->check(whole(1, 1 << 24))->capture_default_str();
  auto* experts = command.add_option("--experts", experts_.experts, "experts in place of the MLP of some blocks (0: none)")->check(whole(0, 65536))->capture_default_str();
  command.add_option("--top-k", experts_.top_k, "experts of each token")->check(whole(1, 65536))->needs(experts)->capture_default_str();
  command.add_option("--expert-every", experts_.every, "which blocks have experts: the last of every so many")->check(whole(1, 10000))->needs(experts)->capture_default_str();
  command.add_option("--flops", flops_, "FLOP/s of a rank; else measured here")->check(number(1, 1e18));
  command.add_option("--bandwidth", bandwidth_, "bytes/s that a rank sends; else a copy is measured here")->check(number(1, 1e18));
  command.add_option("--memory-bandwidth", memory_, "bytes/s of a rank's memory; else measured here")->check(number(1, 1e18));
  command.add_flag("--units", units_, "who owns what, unit by unit")->excludes(axes);
  command.add_flag("--json", json_, "one JSON object");
  command.callback([this] { run(); });
}

void PlanCommand::run_parts() {
  const engine::ModelShape model = engine::parse_model(model_, vocab_, context_, experts_);
  const int64_t heads = std::stoll(model_.substr(model_.rfind('x') + 1));
  engine::PartsPlan plan;
  try {
    plan = engine::plan_parts(engine::read_config(config_), model, heads, parallel::parse_plan(plan_));
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    exit_code_ = 2;
    return;
  }
  engine::Speeds speeds;
  if (flops_ == 0 || bandwidth_ == 0 || memory_ == 0) speeds = engine::measure_speeds(plan.stages[0].parameter_dtype);
  if (flops_ > 0) speeds.flops = flops_;
  if (bandwidth_ > 0) speeds.bandwidth = bandwidth_;
  if (memory_ > 0) speeds.memory = memory_;
  const engine::PredictedTime time = engine::predict(plan, speeds);
  for (const std::string& warning : plan.config.warnings) std::cerr << "warning: " << warning << "\n";
  if (json_) std::cout << to_json(plan, time).dump() << std::endl;
  else print(plan, time);
  std::fflush(stdout);
}

void PlanCommand::run() {
  if (!plan_.empty()) return run_parts();
  LOCKSTEP_CHECK(ranks_ > 0, "lockstep plan: expected --ranks N, or --plan such as dp2+pp2+zero1");
  const engine::ModelShape model = engine::parse_model(model_, vocab_, context_, experts_);
  engine::Plan plan;
  try {
    plan = engine::plan(engine::read_config(config_), model, ranks_);
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    exit_code_ = 2;
    return;
  }
  engine::Speeds speeds;
  if (flops_ == 0 || bandwidth_ == 0 || memory_ == 0) speeds = engine::measure_speeds(plan.parameter_dtype);
  if (flops_ > 0) speeds.flops = flops_;
  if (bandwidth_ > 0) speeds.bandwidth = bandwidth_;
  if (memory_ > 0) speeds.memory = memory_;
  const engine::PredictedTime time = engine::predict(plan, speeds);
  for (const std::string& warning : plan.config.warnings) std::cerr << "warning: " << warning << "\n";
  if (json_) {
    std::cout << to_json(plan, speeds, time).dump() << std::endl;
    return;
  }
  print(plan, speeds, time);
  if (units_) print_units(plan);
  std::fflush(stdout);
}

}  // namespace apps
