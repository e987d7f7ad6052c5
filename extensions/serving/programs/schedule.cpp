// `lockstep schedule serving`: simulates `gpt serve` without a model, and prints or draws the requests of each step.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "apps/commands.h"
#include "base/check.h"
#include "extensions/serving/simulate.h"
#include "train/cli.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;

namespace {

/// Options of the simulation.
struct ServingAsked {
  std::string requests;
  int64_t blocks = 64, rows = 512, sequences = 64;
  std::vector<double> costs{9, 0.5};
};

void add_serving_options(CLI::App& command, ServingAsked& o) {
  const OptionGroup add(command, "Serving");
  add("--requests", o.requests, "when each arrives (ms), tokens of prompt and answer: 0:300+20,5:40+10");
  add("--blocks", o.blocks, "blocks of 32 tokens in the KV cache", integer(1, 1 << 26));
  add("--rows", o.rows, "tokens that a step computes", integer(1, 1 << 16));
  add("--sequences", o.sequences, "sequences that run at once", integer(1, 4096));
  add("--step-costs", o.costs, "ms of a step, and of each of its rows", CLI::NonNegativeNumber)
      ->delimiter(',')
      ->expected(2)
      ->default_str("9,0.5");
}

void print_serving(const ServingAsked& o, const std::string& svg) {
  LOCKSTEP_CHECK(!o.requests.empty(), "serving needs --requests, such as --requests 0:300+20,5:40+10");
  LOCKSTEP_CHECK(o.costs[0] + o.costs[1] > 0, "--step-costs: expected two costs with a sum above 0, got 0,0");
  const std::vector<serve::Arrival> arrivals = serve::parse_arrivals(o.requests);
  const serve::SchedulerState state(o.blocks, {.rows = o.rows, .sequences = std::min(o.rows, o.sequences)});
  const serve::Simulated run = serve::simulate(arrivals, state, {o.costs[0], o.costs[1]});
  if (svg.empty()) {
    fmt::print("serving, {} requests, {} blocks of 32 tokens, {} rows a step\n\n", run.requests.size(), o.blocks,
               o.rows);
    fmt::print(
        "{}\na column per step: how many tokens of a prompt, # for a token of the answer, . waits, x gives its blocks "
        "back\n\n",
        serve::draw_grid(run));
  } else {
    write_output(svg, serve::draw_svg(run));
    fmt::print("picture           {}\n", svg);
  }
  double first = 0, wait = 0;
  for (const auto& r : run.requests) first += r.first - r.arrived, wait = std::max(wait, r.started - r.arrived);
  const double end = run.slots.back().end;
  fmt::print("time              {:.6g} ms, {} steps, {:.1f} rows a step\n", end, run.slots.size(),
             double(run.rows) / double(run.slots.size()));
  fmt::print("tokens            {}, {:.1f} a second\n", run.tokens, 1000 * double(run.tokens) / end);
  fmt::print("first token       after {:.1f} ms on average; the longest wait for blocks {:.1f} ms\n",
             first / double(run.requests.size()), wait);
  fmt::print("shared            {} prompt tokens were already cached\n", run.state.shared_tokens);
  fmt::print("preempted         {}\n", run.state.put_back);
}

}  // namespace

/// Adds `serving` to the names that `lockstep schedule` takes.
void add_serving_commands(CLI::App& app, Shared& shared) {
  CLI::App& command = *app.get_subcommand("schedule");
  CLI::Option& name = *command.get_option("algorithm");
  name.description(name.get_description() + "; serving");
  auto asked = std::make_shared<ServingAsked>();
  add_serving_options(command, *asked);
  shared.schedules["serving"] = {{"--requests", "--blocks", "--rows", "--sequences", "--step-costs"},
                                 [asked](const std::string& svg) { print_serving(*asked, svg); }};
}

}  // namespace apps
