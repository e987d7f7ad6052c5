#pragma once
// `lockstep simulate --model gpt:LxWxH --plan dp8+pp4+tp2+zero1`: a training step on ranks that are not there.
#include <CLI/CLI.hpp>
#include <string>

#include "apps/program.h"
#include "dist/simulate.h"

namespace apps {

struct StepAsked {
  explicit StepAsked(const std::vector<std::string>& program) : model{.program = program} {}
  ModelAsked model;
  std::string plan, schedule = "1f1b", dtype = "f32", measure;  ///< measure: "here", or a folder of traces
  int64_t micro_batch = 0, micro_batches = 0;                   ///< 0: the program's, or 1
  int chunks = 0, ranks_per_host = 8;
  double flops = 0, memory = 0, bucket_mib = 25;
  bool recompute = false, overlap = true, network_given = false;
};
void add_step_options(CLI::App& command, StepAsked& asked);
/// Whether a step is asked for, not a collective.
bool names_step(const StepAsked& asked);
void print_step(const StepAsked& asked, const lockstep::dist::Network& network, bool json);

}  // namespace apps
