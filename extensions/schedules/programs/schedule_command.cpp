// `lockstep schedule`: prints, checks and draws the schedule of a collective, a pipeline or ring attention.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "apps/commands.h"
#include "base/suggest.h"
#include "extensions/schedules/draw.h"
#include "extensions/schedules/programs/collective_options.h"
#include "extensions/schedules/schedule_check.h"
#include "parallel/sequence/plan.h"
#include "pipeline/schedule_check.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;

namespace {

constexpr int max_printed = 128;      // ranks of a collective
constexpr int64_t max_columns = 220;  // width of a pipeline's grid

/// Prints the result of checking a schedule: its errors, or the text `right`. Error if there are errors.
void print_verdict(const std::vector<std::string>& errors, const std::string& svg, const char* right) {
  if (!svg.empty()) fmt::print("picture           {}\n", svg);
  for (const std::string& error : errors) fmt::print("wrong             {}\n", error);
  LOCKSTEP_CHECK(errors.empty(), "the schedule is wrong; this is a bug in Lockstep, please report it");
  fmt::print("checked           right: {}\n", right);
}

void print_collective(const CollectiveAsked& asked, const std::string& svg) {
  const auto [algorithm, request] = understand(asked);
  const dist::CollectiveCheck check = dist::check_schedule(algorithm, request);
  if (!svg.empty()) {
    write_output(svg, draw_svg(algorithm, request));
  } else {
    fmt::print("{} {}, {}\n\n", name_of(algorithm), name_of(request.collective), counted(request.ranks, "rank"));
    if (request.ranks <= max_printed) {
      fmt::print(
          "{}\nc -> r: chunk c goes to rank r; +>: it is added there; c[s]: scratch copy s of chunk c; own: the rank "
          "itself\n\n",
          draw_table(algorithm, request));
    } else {
      fmt::print("(the steps of up to {} ranks are printed)\n\n", max_printed);
    }
  }
  const auto [least, greatest] = std::minmax_element(check.sent.begin(), check.sent.end());
  fmt::print("steps             {}{}\n", check.rounds,
             check.steps > check.rounds ? fmt::format(", and {} within ranks", check.steps - check.rounds) : "");
  fmt::print("chunks            {}\n", check.chunks);
  fmt::print("sent by a rank    {} chunks{}\n", *greatest,
             *least == *greatest ? "" : fmt::format(" at most, {} at least", *least));
  if (check.slots > 0) fmt::print("scratch copies    {}\n", check.slots);
  if (is_reduction(request.collective) && check.right()) {
    const std::string order = check.order(0);
    fmt::print("order of chunk 0  {}\n", order.size() > 200 ? order.substr(0, 200) + "..." : order);
    fmt::print("exact             {}\n", check.all_in_tree_order()
                                             ? "yes: added in the order of summation_tree.h, the same bits as `direct`"
                                             : "no: added in another order");
  }
  print_verdict(check.errors, svg,
                is_reduction(request.collective) ? "every rank's term is in every sum exactly once"
                                                 : "every chunk is where it belongs");
}

/// Prints the steps of causal ring attention: for tokens in contiguous order, and in zigzag order.
void print_ring_attention(int ranks, const std::string& svg) {
  using namespace sequence;
  if (!svg.empty()) {
    write_output(svg, draw_svg(ranks));
    fmt::print("picture           {}\n", svg);
  }
  constexpr int64_t tokens = 1024;
  for (const TokenOrder order : {TokenOrder::contiguous, TokenOrder::zigzag}) {
    double done = 0, lasts = 0;
    std::vector<std::string> rows(static_cast<size_t>(ranks));
    for (int step = 0; step < ranks; ++step) {
      double longest = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const double work = scores(piece(tokens, ranks, rank, step, order, true));
        rows[size_t(rank)] += fmt::format(
            " {:>8}", work == 0 ? std::string(".")
                                : fmt::format("{}:{:.2f}", owner(ranks, rank, step), work / double(tokens * tokens)));
        longest = std::max(longest, work);
        done += work;
      }
      lasts += longest;
    }
    if (svg.empty()) {
      fmt::print("ring attention, causal, {}: a column per step, owner of the keys : part of the block's scores\n\n",
                 name_of(order));
      for (int rank = 0; rank < ranks && ranks <= 16; ++rank) fmt::print("rank {:<4}{}\n", rank, rows[size_t(rank)]);
      fmt::print("\n");
    }
    fmt::print("{:<18}busy {:.2f} %\n", name_of(order), 100 * done / (lasts * ranks));
  }
}

struct PipelineAsked {
  int stages = 0, micro_batches = 0, chunks = 0;
  std::vector<double> costs{1, 1, 1, 0};
  bool paired = false;
};

void add_pipeline_options(CLI::App& command, PipelineAsked& o) {
  const OptionGroup add(command, "Pipelines");
  add("--stages", o.stages, "ranks of the pipeline", CLI::Range(1, 4096));
  add("--micro-batches", o.micro_batches, "micro-batches of a step", CLI::Range(1, 1 << 20));
  add("--chunks", o.chunks, "chunks of the model at each rank (interleaved; default 2)", CLI::Range(1, 64));
  add("--costs", o.costs,
      "times of a rank's forward, input part and weights' part of the backward, and latency of a message",
      CLI::NonNegativeNumber)
      ->delimiter(',')
      ->expected(3, 4)
      ->default_str("1,1,1,0");
  add("--paired", o.paired,
      "dualpipe-v: time a forward and the backward after it as one computation, as its paper does");
}

void print_pipeline(const std::string& name, const PipelineAsked& o, const std::string& svg) {
  const pipeline::ScheduleKind kind = pipeline::parse_kind(name);
  LOCKSTEP_CHECK(o.stages > 0 && o.micro_batches > 0, name,
                 " needs --stages and --micro-batches, such as --stages 4 --micro-batches 8");
  LOCKSTEP_CHECK(!o.paired || kind == pipeline::ScheduleKind::dualpipe_v, "--paired is for dualpipe-v, got ", name,
                 "; leave it out");
  LOCKSTEP_CHECK(!o.paired || svg.empty(),
                 "--paired is for the time; the picture shows computations one after another, leave out --svg");
  LOCKSTEP_CHECK(int64_t(o.stages) * o.micro_batches <= 1 << 22, "expected --stages x --micro-batches of at most ",
                 1 << 22, ", got ", int64_t(o.stages) * o.micro_batches);
  const pipeline::PipelineSchedule s = pipeline::make_schedule({kind, o.stages, o.micro_batches, o.chunks});
  const pipeline::PipelineCheck check = pipeline::check_schedule(s);
  const pipeline::StageCosts costs{o.costs[0], o.costs[1], o.costs[2], o.costs.size() > 3 ? o.costs[3] : 0, o.paired};
  const pipeline::Simulation run = pipeline::simulate(s, costs);
  const pipeline::BubbleFormula formula = pipeline::formula(s.request, costs);
  if (!svg.empty()) {
    write_output(svg, pipeline::draw_svg(s, costs));
  } else {
    fmt::print("{}, {}, {}{}\n\n", name, counted(o.stages, "stage"), counted(o.micro_batches, "micro-batch"),
               s.request.chunks > 1 ? fmt::format(", {} chunks a rank", s.request.chunks) : "");
    if (int64_t(3) * s.request.chunks * (o.micro_batches + o.stages) <= max_columns && o.stages <= 128) {
      fmt::print(
          "{}\nF3: forward of micro-batch 3; B: backward; I, W: its parts for the input and the weights{}; a column "
          "each\n\n",
          pipeline::draw_grid(s), s.request.chunks > 1 ? "; a, b, ...: the chunk" : "");
    } else {
      fmt::print("(too long to print; --svg draws it)\n\n");
    }
  }
  const auto [least, greatest] = std::minmax_element(check.buffers.begin(), check.buffers.end());
  std::string kept;
  for (size_t rank = 0; rank < check.buffers.size() && rank < 32; ++rank)
    kept += fmt::format("{}{}", rank ? " " : "", check.buffers[rank]);
  fmt::print("time              {:.6g}, busy {:.6g} at the busiest rank\n", run.seconds,
             *std::max_element(run.busy.begin(), run.busy.end()));
  fmt::print("idle (bubble)     {:.2f} %\n", 100 * run.bubble);
  fmt::print("formula           {} = {:.2f} %{}\n", formula.text, 100 * formula.bubble,
             costs.latency > 0 ? " (without latency)" : "");
  if (check.right())
    fmt::print("activations kept  {}{}\n", *least == *greatest ? fmt::format("{} at every rank", *greatest) : kept,
               check.buffers.size() > 32 && *least != *greatest ? " ..." : "");
  fmt::print("messages          {}\n", check.messages);
  if (o.micro_batches < o.stages)
    fmt::print("note              fewer micro-batches than stages: a rank is always idle; give more of them\n");
  print_verdict(check.errors, svg, "every forward and backward once, in a possible order, no deadlock");
}

}  // namespace

void add_schedules_commands(CLI::App& app, Shared& shared) {
  CLI::App& command =
      *app.add_subcommand("schedule", "print, check and draw the schedule of a collective or of a pipeline");
  auto asked = std::make_shared<CollectiveAsked>();
  auto pipeline = std::make_shared<PipelineAsked>();
  auto svg = std::make_shared<std::string>();
  add_collective_options(command, *asked, true);
  command.add_flag("--mean", asked->mean, "also divide sums, to get means");
  command.add_option("--svg", *svg, "write a picture to this file instead of printing the steps (up to 16 ranks)");
  add_pipeline_options(command, *pipeline);
  command.callback([=, &command, &shared] {
    as_usage([&] {
      const std::string& name = asked->algorithm;
      for (const auto& [other, schedule] : shared.schedules)
        if (other != name) refuse_given(command, schedule.options, " is for " + other + "; leave it out");
      if (const auto other = shared.schedules.find(name); other != shared.schedules.end()) {
        refuse_given(command,
                     {"--ranks", "--collective", "--root", "--hosts", "--mean", "--stages", "--micro-batches",
                      "--chunks", "--costs", "--paired"},
                     " is not for " + name + "; leave it out, and give " + other->second.options.at(0));
        return other->second.print(*svg);
      }
      if (pipeline::is_kind(name) || pipeline->stages > 0 || pipeline->micro_batches > 0 || pipeline->chunks > 0) {
        refuse_given(
            command, {"--ranks", "--collective", "--root", "--hosts", "--mean"},
            " is for collectives; leave it out: " + name + " is a pipeline, which takes --stages and --micro-batches");
        return print_pipeline(name, *pipeline, *svg);
      }
      if (name == "ring-attention") {
        refuse_given(command, {"--collective", "--root", "--hosts", "--mean"},
                     " is for collectives; leave it out: ring-attention takes --ranks");
        LOCKSTEP_CHECK(asked->ranks <= 1024, "ring-attention expected --ranks up to 1024, got ", asked->ranks);
        return print_ring_attention(asked->ranks, *svg);
      }
      LOCKSTEP_CHECK(command.get_option("--ranks")->count() > 0, name, " needs --ranks, such as --ranks 4");
      print_collective(*asked, *svg);
    });
  });
}

}  // namespace apps
