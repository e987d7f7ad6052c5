#pragma once
// A schedule of serving without a model: requests arrive, steps take the time that their rows cost, and what happened
// is there to be printed and drawn.
#include "inference/serve/scheduler.h"

namespace lockstep::serve {

struct Arrival {
  double time = 0;     ///< ms
  int64_t prompt = 0;  ///< tokens
  int64_t answer = 1;  ///< tokens, at least one
  int64_t common = 0;  ///< so many of the prompt's first tokens are those of the others that say so
};
/// "0:300+20": at 0 ms a prompt of 300 tokens, answered with 20; "0:300+20/256": of which 256 are common.
std::vector<Arrival> parse_arrivals(const std::string& text);

/// What a step costs, in ms: once for reading the weights, and for each row.
struct StepCosts {
  double step = 9, row = 0.5;
};

struct Simulated {
  struct Slot {
    double start, end;
    Step step;
    int64_t blocks;  ///< in use
  };
  struct Request {
    double arrived, started = 0, first = 0, ended = 0;  ///< first: token of the answer
  };
  std::vector<Slot> slots;
  std::vector<Request> requests;
  int64_t tokens = 0, rows = 0, shared_tokens = 0, put_back = 0;  ///< made; computed for them; not computed
  Limits limits;
  int64_t block_count = 0;
};
Simulated simulate(const std::vector<Arrival>& arrivals, State state, const StepCosts& costs = {});

/// A row per request, a column per step: how many of its prompt's tokens, "#" for a token of the answer, "." waits, "x"
/// gave way.
std::string draw_grid(const Simulated& run);
/// Time goes right, requests go down; below them the rows of each step and the blocks in use. Error for more than can
/// be told apart.
std::string draw_svg(const Simulated& run);

}  // namespace lockstep::serve
