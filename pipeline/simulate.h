#pragma once
// Simulates a pipeline schedule with given costs: when each action runs, how long ranks are idle (the bubble), and
// whether the schedule deadlocks. No rank is started.
#include <string>
#include <vector>

#include "pipeline/schedule.h"

namespace lockstep::pipeline {

/// Time, in seconds or any unit, of one micro-batch in all v chunks of a rank; each chunk takes 1/v of it. A backward
/// that is not split takes input + weight.
struct StageCosts {
  double forward = 1, input = 1, weight = 1;
  double latency = 0;  ///< duration of a transfer; sending does not occupy the rank
  /// dualpipe-v only. true, as in the paper: a forward and the backward after it, if that is not split, are one
  /// computation, and both results are available at its end. false, as in the engine: the backward runs afterwards.
  bool paired = false;
  std::vector<double> weights = {};  ///< relative cost of each virtual stage, 1 being an even share; empty: all equal
};

/// An action with its start and end time.
struct TimedAction {
  StepAction action;
  double start, end;
};

/// The result of simulate().
struct Simulation {
  double seconds = 0;                           ///< time until the last rank is done
  std::vector<std::vector<TimedAction>> ranks;  ///< computations only
  /// Computing time of each rank.
  std::vector<double> busy;
  double bubble = 0;      ///< idle fraction of all ranks' time
  std::vector<int> kept;  ///< most activations that each rank keeps, each of one micro-batch in one chunk
  /// If the schedule deadlocks: the action at which each rank is blocked, and the rank that it waits for (-1: none).
  struct Stuck {
    int rank;
    StepAction action;
    int waits_for;
  };
  std::vector<Stuck> stuck;
};

/// Goes through each rank's list of actions in order. A rank waits at a receive, but not at a send. The lists may
/// contain any error, such as a deadlock. Throws an Error for costs that are negative or not finite.
Simulation simulate(const PipelineSchedule& schedule, const StageCosts& costs = {}, const Ties& ties = {});

/// Idle fraction by the papers' formulas, without latency, from the times of a rank's forward F, input gradient I and
/// weight gradient W. It equals simulate()'s bubble under these conditions, for p ranks and m micro-batches:
///   gpipe, 1f1b, interleaved    any costs
///   zb-h1                       m >= p, W <= I, W <= F
///   dualpipe-v                  I+W >= F >= I >= W; paired: F = I >= W
struct BubbleFormula {
  std::string text;
  double bubble = 0;
};
/// Evaluates the formula of request.kind. Error if no such schedule exists.
BubbleFormula formula(const PipelineRequest& request, const StageCosts& costs = {});

}  // namespace lockstep::pipeline
