#pragma once
// Continuous batching: chooses which tokens of which sequences the model computes next (Yu et al., Orca, 2022; Holmes
// et al., Dynamic SplitFuse, 2024). All functions work on a SchedulerState, a value: no clock, no thread, no model. The
// same code therefore prints, draws, simulates (simulate.h) and runs (batcher.h) a schedule.
//
// A step has a limited number of rows, one per token. Every sequence that is generating gets one row; the rest go to
// prompts in the order of arrival, which may be split anywhere. Keys and values are stored in blocks; sequences with a
// common prefix share whole blocks, and blocks that lie before the attention window of all future tokens are released.
// When blocks run out, the youngest sequence releases its own, waits, and is recomputed later. No sequence starves: it
// only yields to older ones, so the oldest always advances.
#include <cstdint>
#include <string>
#include <vector>

#include "extensions/serving/blocks.h"

namespace lockstep::serve {

/// A request's tokens and blocks.
struct Sequence {
  int64_t number = 0;           ///< numbers rise in the order of arrival
  std::vector<int64_t> tokens;  ///< the prompt and the generated tokens
  int64_t max_tokens = 0;       ///< maximal length, prompt included
  bool full_prompt = false;     ///< true: compute the whole prompt, because its scores are needed; share no blocks
  int64_t computed = 0;         ///< tokens whose keys and values are in its blocks
  std::vector<int32_t> blocks;  ///< blocks in order; -1: released, because no future token sees it
  int64_t left() const { return int64_t(tokens.size()) - computed; }  ///< tokens still to be computed
};

/// Limits of a schedule.
struct Limits {
  int64_t rows = 512;      ///< most rows (tokens) in a step
  int64_t sequences = 64;  ///< most sequences that run at a time
};

/// The state of a schedule. Running sequences are always older than waiting ones.
struct SchedulerState {
  explicit SchedulerState(int64_t blocks_, const Limits& limits_ = {}, int64_t block_tokens = 32);
  Limits limits;
  Blocks blocks;
  /// Attention window in tokens, if every layer has one; 0: a token sees all earlier tokens.
  int64_t window = 0;
  std::vector<Sequence> running, waiting;   ///< sorted by number
  int64_t arrived = 0;                      ///< numbers assigned so far
  int64_t shared_tokens = 0, put_back = 0;  ///< tokens found in shared blocks; number of times a sequence had to yield

  /// The sequence with this number; Error if there is none.
  Sequence& at(int64_t number);
};

/// Tells the model to compute tokens [first, first + count) of a sequence. last: a new token is sampled afterwards.
struct ScheduledTokens {
  int64_t number, first, count;
  bool last;
  friend bool operator==(const ScheduledTokens&, const ScheduledTokens&) = default;
};
/// The work of one run of the model.
struct BatchStep {
  std::vector<ScheduledTokens> work;
  std::vector<int64_t> started, put_back;  ///< sequences, by number, that start or give their blocks back
  int64_t rows() const;                    ///< number of tokens computed
};

/// Adds a sequence of at most `max_tokens` tokens, prompt included; returns its number. full_prompt: compute every
/// prompt token, because its scores are needed. Error if the sequence needs more blocks than exist.
int64_t add(SchedulerState& state, std::vector<int64_t> prompt, int64_t max_tokens, bool full_prompt = false);
/// Chooses the next step and takes its blocks. The step is empty if there are no sequences.
BatchStep next_step(SchedulerState& state);
/// Records that the model has computed a step; completed blocks become shareable.
void done(SchedulerState& state, const BatchStep& step);
/// Appends a sampled token to a sequence.
void append(SchedulerState& state, int64_t number, int64_t token);
/// Removes a sequence, running or waiting.
void finish(SchedulerState& state, int64_t number);
/// One line, e.g. "3 rows: 0 at 41, 2 [0, 2); started 2; put back 5": token 41 of sequence 0, the first two tokens of
/// sequence 2, which starts, and sequence 5 was preempted.
std::string to_string(const BatchStep& step);

}  // namespace lockstep::serve
