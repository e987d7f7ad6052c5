#pragma once
// The interface of a kind of schedule. Each .cpp file here defines one kind by a ScheduleRules: its name, the lists
// of computations, its constraints, and the paper's formula for the bubble, with which tests compare the lists.
#include <algorithm>

#include "pipeline/simulate.h"

namespace lockstep::pipeline {

/// A kind of schedule.
struct ScheduleRules {
  std::string_view name;  ///< name in configurations and on command lines
  /// The computations of one rank, in order; make_schedule() adds the transfers.
  std::vector<StepAction> (*computations)(const PipelineRequest& request, int rank);
  /// The formula for the fraction of all ranks' time that is idle, from the paper that proposes the schedule.
  BubbleFormula (*bubble)(const PipelineRequest& request, const StageCosts& costs);
  /// Returns the reason why these numbers of stages, micro-batches and chunks are not possible ("expected ..., got ...;
  /// use ..."), or an empty text if they are possible. Null function: all numbers are possible.
  std::string (*refusal)(const PipelineRequest& request) = nullptr;
  int chunks = 1;           ///< default number of chunks per rank
  bool any_chunks = false;  ///< true if other numbers than the default are allowed
  bool is_v = false;        ///< true: second chunks are in reverse order, so the first rank holds both ends
};

/// The bubble of 1F1B, and of schedules whose ranks are idle as long as in 1F1B.
inline BubbleFormula bubble_of_1f1b(const PipelineRequest& r, const StageCosts&) {
  return {"(p-1)/(m+p-1)", double(r.stages - 1) / (r.micro_batches + r.stages - 1)};
}
/// The bubble if each rank works for the time of its micro-batches and is idle for the time `one`. `text`: the formula.
inline BubbleFormula idle(const char* text, double one, const PipelineRequest& r, const StageCosts& c) {
  const double all = one + r.micro_batches * (c.forward + c.input + c.weight);
  return {text, all > 0 ? one / all : 0};
}

#define KIND(x) extern const ScheduleRules x;
namespace rules {
#include "pipeline/schedules/kinds.def"
}
#undef KIND

}  // namespace lockstep::pipeline
