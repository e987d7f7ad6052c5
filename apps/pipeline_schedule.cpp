#include "apps/pipeline_schedule.h"

#include "train/cli.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

#include "pipeline/draw.h"
#include "pipeline/schedule_check.h"
#include "tensor/check.h"

namespace apps {

using namespace lockstep::train;

using namespace lockstep;

namespace {

constexpr int64_t most_columns = 220;  // of a printed grid

}  // namespace

void add_pipeline_options(CLI::App& command, PipelineAsked& o) {
  const std::string group = "Pipelines";
  command.add_option("--stages", o.stages, "ranks of the pipeline")->check(CLI::Range(1, 4096))->group(group);
  command.add_option("--micro-batches", o.micro_batches, "micro-batches of a step")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  command.add_option("--chunks", o.chunks, "chunks of the model at each rank (interleaved; default 2)")
      ->check(CLI::Range(1, 64))
      ->group(group);
  command
      .add_option("--costs", o.costs,
                  "times of a rank's forward, input part and weights' part of the backward, and latency of a message")
      ->delimiter(',')
      ->expected(3, 4)
      ->check(CLI::NonNegativeNumber)
      ->default_str("1,1,1,0")
      ->group(group);
  command
      .add_flag("--paired", o.paired,
                "dualpipe-v: time a forward and the backward after it as one computation, as its paper does")
      ->group(group);
}

bool names_pipeline(const std::string& schedule, const PipelineAsked& o) {
  return pipeline::is_kind(schedule) || o.stages > 0 || o.micro_batches > 0 || o.chunks > 0;
}

void print_pipeline(const std::string& name, const PipelineAsked& o, const std::string& svg) {
  const pipeline::Kind kind = pipeline::parse_kind(name);
  LOCKSTEP_CHECK(o.stages > 0 && o.micro_batches > 0, name,
                 " needs --stages and --micro-batches, such as --stages 4 --micro-batches 8");
  LOCKSTEP_CHECK(!o.paired || kind == pipeline::Kind::dualpipe_v, "--paired is for dualpipe-v, got ", name);
  LOCKSTEP_CHECK(!o.paired || svg.empty(),
                 "--paired is for the time; the picture shows computations one after another, leave out --svg");
  LOCKSTEP_CHECK(int64_t(o.stages) * o.micro_batches <= 1 << 22, "expected --stages x --micro-batches of at most ",
                 1 << 22, ", got ", int64_t(o.stages) * o.micro_batches);
  const pipeline::Schedule s = pipeline::make_schedule({kind, o.stages, o.micro_batches, o.chunks});
  const pipeline::Check check = pipeline::check_schedule(s);
  const pipeline::Costs costs{o.costs[0], o.costs[1], o.costs[2], o.costs.size() > 3 ? o.costs[3] : 0, o.paired};
  const pipeline::Simulation run = pipeline::simulate(s, costs);
  const pipeline::Formula formula = pipeline::formula(s.request, costs);
  if (!svg.empty()) {
    write_output(svg, pipeline::draw_svg(s, costs));
  } else {
    fmt::print("{}, {} stage{}, {} micro-batch{}{}\n\n", name, o.stages, o.stages == 1 ? "" : "s", o.micro_batches,
               o.micro_batches == 1 ? "" : "es",
               s.request.chunks > 1 ? fmt::format(", {} chunks a rank", s.request.chunks) : "");
    if (int64_t(3) * s.request.chunks * (o.micro_batches + o.stages) <= most_columns && o.stages <= 128) {
      fmt::print(
          "{}\nF3: forward of micro-batch 3; B: backward; I, W: its parts for the input and the weights{}; a column "
          "each\n\n",
          pipeline::draw_grid(s), s.request.chunks > 1 ? "; a, b, ...: the chunk" : "");
    } else {
      fmt::print("(too long to print; --svg draws it)\n\n");
    }
  }
  const auto [least, most] = std::minmax_element(check.buffers.begin(), check.buffers.end());
  std::string kept;
  for (size_t rank = 0; rank < check.buffers.size() && rank < 32; ++rank)
    kept += fmt::format("{}{}", rank ? " " : "", check.buffers[rank]);
  fmt::print("time              {:.6g}, busy {:.6g} at the busiest rank\n", run.seconds,
             *std::max_element(run.busy.begin(), run.busy.end()));
  fmt::print("idle (bubble)     {:.2f} %\n", 100 * run.bubble);
  fmt::print("formula           {} = {:.2f} %{}\n", formula.text, 100 * formula.bubble,
             costs.latency > 0 ? " (without latency)" : "");
  if (check.right())
    fmt::print("activations kept  {}{}\n", *least == *most ? fmt::format("{} at every rank", *most) : kept,
               check.buffers.size() > 32 && *least != *most ? " ..." : "");
  fmt::print("messages          {}\n", check.messages);
  if (o.micro_batches < o.stages)
    fmt::print("note              fewer micro-batches than stages: some rank is idle at any time\n");
  if (!svg.empty()) fmt::print("picture           {}\n", svg);
  for (const std::string& error : check.errors) fmt::print("wrong             {}\n", error);
  LOCKSTEP_CHECK(check.right(), "the schedule is wrong");
  fmt::print("checked           right: every forward and backward once, in an order that can be, no deadlock\n");
  std::fflush(stdout);
}

}  // namespace apps
