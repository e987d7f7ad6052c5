#pragma once
// What a pipeline schedule does in time, with given costs: when each action runs, how long ranks are idle (the bubble),
// and whether it ends at all. No rank is started.
#include <string>
#include <utility>
#include <vector>

#include "pipeline/schedule.h"

namespace lockstep::pipeline {

/// Seconds (or any unit) for one micro-batch in all layers of a rank; a chunk has its share. A whole backward is input
/// + weight.
struct Costs {
  double forward = 1, input = 1, weight = 1;
  double latency = 0;  ///< of a transfer; sending does not occupy a rank
  /// dualpipe-v: a forward and the whole backward that follows it are one computation, as in the paper, whose two
  /// results come at its end. Our engine does one after the other.
  bool paired = false;
  std::vector<double> weights = {};  ///< of each virtual stage, 1 being an even share; empty: all the same
};

struct Slot {
  Action action;
  double start, end;
};

struct Simulation {
  double seconds = 0;                    ///< until the last rank is done
  std::vector<std::vector<Slot>> ranks;  ///< computations only
  std::vector<double> busy;
  double bubble = 0;      ///< idle part of all ranks' time
  std::vector<int> kept;  ///< most activations held at once by each rank, in micro-batches of a chunk
  /// What each rank could not do, when the schedule does not end: a receive whose message never comes, first of a
  /// circle of waits.
  struct Stuck {
    int rank;
    Action action;
    int waits_for;
  };
  std::vector<Stuck> stuck;
};

/// Ties are pairs of virtual stages (from, to): a weight of `from` is also one of `to`, which adds its gradient to that
/// of `from`, so the weights' backward of `to` waits for that of `from`.
using Ties = std::vector<std::pair<int, int>>;

/// Runs the lists as ranks do: in order, receives block, sends do not. The schedule may be wrong in any way.
Simulation simulate(const Schedule& schedule, const Costs& costs = {}, const Ties& ties = {});

/// What the papers say of the idle part, without latency, in a rank's F, I and W. It equals simulate()'s bubble for
///   gpipe, 1f1b, interleaved    any costs
///   zb-h1                       m >= p, W <= I, W <= F
///   dualpipe-v                  I+W >= F >= I >= W; paired: F = I >= W
struct Formula {
  std::string text;
  double bubble = 0;
};
Formula formula(const Request& request, const Costs& costs = {});

// For the eye: a grid of text, and a picture (SVG).

/// A row per rank, a column per unit of time (forward, input and weight take one each): F3 forward, B3 backward, I3 and
/// W3 its parts of micro-batch 3; a, b, ... its chunk; "." is idle.
std::string draw_grid(const Schedule& schedule);

/// Time goes right, ranks go down; a box is a computation with its micro-batch. Error for more than can be told apart
/// (32 ranks).
std::string draw_svg(const Schedule& schedule, const Costs& costs = {});

}  // namespace lockstep::pipeline
