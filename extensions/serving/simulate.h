#pragma once
// Simulates a serving schedule without a model: requests arrive, each step takes a time that depends on its rows, and
// the result can be printed and drawn.
#include "extensions/serving/scheduler.h"

namespace lockstep::serve {

/// A simulated request.
struct Arrival {
  double time = 0;     ///< arrival in ms
  int64_t prompt = 0;  ///< tokens of the prompt
  int64_t answer = 1;  ///< number of tokens, at least 1
  int64_t common = 0;  ///< tokens of the prefix that the prompt shares with other requests
};
/// Parses requests. "0:300+20" means: at 0 ms, a prompt of 300 tokens with an answer of 20 tokens. In "0:300+20/256",
/// the first 256 prompt tokens are a prefix that requests share.
std::vector<Arrival> parse_arrivals(const std::string& text);

/// The cost of a step in ms: a constant for reading the weights, plus a cost per row.
struct StepCosts {
  double step = 9, row = 0.5;
};

/// The result of simulate().
struct Simulated {
  /// A step with its times.
  struct Slot {
    double start, end;
    BatchStep step;
    int64_t blocks;  ///< blocks in use
  };
  /// Times of a request.
  struct Request {
    double arrived, started = 0, first = 0, ended = 0;  ///< first: when the first token of the answer is ready
  };
  std::vector<Slot> slots;
  std::vector<Request> requests;
  int64_t tokens = 0, rows = 0;  ///< numbers of tokens generated and of rows computed
  SchedulerState state;          ///< the state at the end, with its limits and counts
};
/// Runs the schedule on these requests, from the empty state `start`.
Simulated simulate(const std::vector<Arrival>& arrivals, SchedulerState start, const StepCosts& costs = {});

/// Draws a row per request and a column per step. A number: prompt tokens computed; "#": a token of the answer;
/// ".": waiting; "x": preempted.
std::string draw_grid(const Simulated& run);
/// Draws an SVG picture. Time goes right, requests go down; below them are the rows of each step and the blocks in use.
/// Error for too many requests or steps to be legible.
std::string draw_svg(const Simulated& run);

}  // namespace lockstep::serve
