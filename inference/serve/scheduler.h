#pragma once
// Continuous batching: which tokens of which sequences the model computes next (Yu et al., Orca, 2022; Holmes et al.,
// Dynamic SplitFuse, 2024). Functions of a state that is a value: no clock, no thread, no model. So a schedule is
// printed, drawn, simulated (inference/serve/simulate.h) and run (inference/serve/batcher.h) by the same code.
//
// A step has at most so many rows, one a token. Every sequence that makes text gets one; what is left goes to prompts
// in the order of their arrival, which may be cut anywhere. Keys and values lie in blocks; sequences that begin alike
// share whole blocks. Blocks that lie before the window of all to come are given back. When blocks run out, the
// youngest sequence gives its own back, waits, and is computed again. Nobody starves: a sequence gives way only to
// older ones, so the oldest always moves on.
#include <cstdint>
#include <string>
#include <vector>

#include "inference/serve/blocks.h"

namespace lockstep::serve {

struct Sequence {
  int64_t number = 0;           ///< in the order of arrival
  std::vector<int64_t> tokens;  ///< the prompt, and what was made
  int64_t most = 0;             ///< as long as it may become
  bool whole_prompt = false;    ///< its prompt's scores are wanted, so none of it is taken from shared blocks
  int64_t computed = 0;         ///< so many tokens have keys and values in its blocks
  std::vector<int32_t> blocks;  ///< -1: was given back, as no token to come sees it
  int64_t left() const { return int64_t(tokens.size()) - computed; }
};

struct Limits {
  int64_t rows = 512;      ///< of a step
  int64_t sequences = 64;  ///< that run at a time
};

/// Whoever runs is older than whoever waits.
struct State {
  explicit State(int64_t blocks_, const Limits& limits_ = {}, int64_t block_tokens = 32);
  Limits limits;
  Blocks blocks;
  int64_t window = 0;                       ///< of attention, in every layer; 0: a token sees all before it
  std::vector<Sequence> running, waiting;   ///< by number
  int64_t arrived = 0;                      ///< numbers given so far
  int64_t shared_tokens = 0, put_back = 0;  ///< not computed, as others had them; sequences that had to give way

  /// Error when there is none.
  Sequence& at(int64_t number);
};

/// Tokens [first, first + count) of a sequence; `last`: its next token follows.
struct Work {
  int64_t number, first, count;
  bool last;
  friend bool operator==(const Work&, const Work&) = default;
};
struct Step {
  std::vector<Work> work;
  std::vector<int64_t> started, put_back;  ///< numbers that began to run, or gave their blocks back
  int64_t rows() const;
};

/// A sequence arrives; gives back its number. Error when it could never have enough blocks.
int64_t add(State& state, std::vector<int64_t> prompt, int64_t most, bool whole_prompt = false);
/// What the model computes now; its blocks are taken. Without work: nobody is there.
Step next_step(State& state);
/// The model has computed it: whole blocks become known to others.
void done(State& state, const Step& step);
/// The token that the model made for a sequence, behind all that it has.
void append(State& state, int64_t number, int64_t token);
/// A sequence has ended or is given up, wherever it is.
void finish(State& state, int64_t number);
/// A line: "3 rows: 0 at 41, 2 [0, 2); started 2; put back 5".
std::string to_string(const Step& step);

}  // namespace lockstep::serve
