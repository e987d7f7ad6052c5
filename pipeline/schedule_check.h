#pragma once
// Proves a pipeline schedule right before a rank starts: every computation once and in an order that can be, every
// transfer at both ends, no deadlock with receives that block. It takes any lists, which may be wrong in any way.
#include <string>
#include <vector>

#include "pipeline/simulate.h"

namespace lockstep::pipeline {

struct Check {
  std::vector<std::string> errors;  ///< the first few, each naming rank, stage and micro-batch
  std::vector<int> buffers;         ///< most activations held at once by each rank, in micro-batches of a chunk
  int64_t messages = 0;             ///< between ranks, of a step
  bool right() const { return errors.empty(); }
};

Check check_schedule(const Schedule& schedule, const Ties& ties = {});

}  // namespace lockstep::pipeline
