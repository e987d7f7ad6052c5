#pragma once
// `lockstep simulate --model gpt:LxWxH --plan dp8+pp4+tp2+zero1`: a training step on ranks that are not there.
#include <CLI/CLI.hpp>
#include <string>

#include "dist/simulate.h"

namespace apps {

struct StepAsked {
  std::string model, plan, schedule = "1f1b", dtype = "f32", measure;  ///< measure: "here", or a folder of traces
  int64_t vocab = 50257, context = 1024, micro_batch = 1, micro_batches = 1;
  int chunks = 0, ranks_per_host = 8;
  double flops = 0, memory = 0, bucket_mib = 25;
  bool recompute = false, overlap = true, network_given = false;
};
void add_step_options(CLI::App& command, StepAsked& asked);
/// Whether a step is asked for, not a collective.
bool names_step(const StepAsked& asked);
void print_step(const StepAsked& asked, const lockstep::dist::Network& network, bool json);

}  // namespace apps
