// Continuous batching. See scheduler.h.
#include "extensions/serving/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tensor/paged_attention.h"

namespace lockstep::serve {

namespace {

void give_blocks_back(SchedulerState& state, Sequence& s) {
  for (auto block = s.blocks.rbegin(); block != s.blocks.rend(); ++block)
    if (*block >= 0) state.blocks.release(*block);  // in reverse, so that the first blocks stay cached longest
  s.blocks.clear();
  s.computed = 0;
}

/// Preempts the youngest running sequence. Returns the number of rows that this frees in the step.
int64_t put_back_youngest(SchedulerState& state, BatchStep& step) {
  Sequence s = std::move(state.running.back());
  state.running.pop_back();
  give_blocks_back(state, s);
  ++state.put_back;
  step.put_back.push_back(s.number);
  int64_t rows = 0;
  std::erase_if(step.work, [&](const ScheduledTokens& w) { return w.number == s.number && ((rows += w.count), true); });
  state.waiting.insert(state.waiting.begin(), std::move(s));
  return rows;
}

/// Plans up to `rows` rows of the i-th running sequence and takes blocks for them. If blocks run out, preempts younger
/// sequences, or the sequence itself if there are none. Returns the rows used minus the rows freed by preemption.
int64_t plan(SchedulerState& state, BatchStep& step, size_t i, int64_t rows) {
  const int64_t count = std::min(rows, state.running[i].left());
  const int64_t needed = state.blocks.of(state.running[i].computed + count) - int64_t(state.running[i].blocks.size());
  int64_t spent = 0;
  while (state.blocks.free() < needed && state.running.size() > i + 1) spent -= put_back_youngest(state, step);
  Sequence& s = state.running[i];
  for (int64_t taken = 0; taken < needed && state.blocks.free() > 0; ++taken) s.blocks.push_back(state.blocks.take());
  const int64_t room = std::min(count, int64_t(s.blocks.size()) * state.blocks.tokens() - s.computed);
  if (room == 0) return spent - put_back_youngest(state, step);
  step.work.push_back({s.number, s.computed, room, room == s.left()});
  return spent + room;
}

/// Starts the sequence that has waited longest if there are free blocks for its tokens and for one new token. Returns
/// true if it started.
bool start(SchedulerState& state, BatchStep& step) {
  Sequence& s = state.waiting.front();
  const auto length = int64_t(s.tokens.size());
  // Take shared blocks for all tokens but the last, which must be computed because its logits are needed.
  if (!s.full_prompt) s.blocks = state.blocks.share(s.tokens, (length - 1) / state.blocks.tokens());
  const int64_t wanted = state.blocks.of(std::min(length + 1, s.max_tokens)) - int64_t(s.blocks.size());
  if (state.blocks.free() < wanted) {
    give_blocks_back(state, s);
    return false;
  }
  s.computed = int64_t(s.blocks.size()) * state.blocks.tokens();
  state.shared_tokens += s.computed;
  step.started.push_back(s.number);
  state.running.push_back(std::move(s));
  state.waiting.erase(state.waiting.begin());
  return true;
}

}  // namespace

SchedulerState::SchedulerState(int64_t blocks_, const Limits& limits_, int64_t block_tokens)
    : limits(limits_), blocks(blocks_, block_tokens) {
  LOCKSTEP_CHECK(limits.sequences > 0 && limits.rows >= limits.sequences,
                 "[schedule] expected at least 1 sequence, and at least as many rows as sequences, got ", limits.rows,
                 " rows for ", limits.sequences, " sequences");
}

Sequence& SchedulerState::at(int64_t number) {
  for (std::vector<Sequence>* of : {&running, &waiting})
    for (Sequence& s : *of)
      if (s.number == number) return s;
  fail(str("[schedule] there is no sequence ", number, "; use a number that add() returned"));
}

int64_t BatchStep::rows() const {
  int64_t sum = 0;
  for (const ScheduledTokens& w : work) sum += w.count;
  return sum;
}

int64_t add(SchedulerState& state, std::vector<int64_t> prompt, int64_t max_tokens, bool full_prompt) {
  LOCKSTEP_CHECK(!prompt.empty() && max_tokens >= int64_t(prompt.size()), "[schedule] expected a prompt of 1 to ",
                 max_tokens, " tokens, got ", prompt.size());
  LOCKSTEP_CHECK(state.blocks.of(max_tokens) <= state.blocks.count(), "[schedule] ", max_tokens, " tokens need ",
                 state.blocks.of(max_tokens), " blocks, there are ", state.blocks.count(),
                 "; ask for fewer tokens, or give the cache more blocks");
  state.waiting.push_back(
      {.number = state.arrived, .tokens = std::move(prompt), .max_tokens = max_tokens, .full_prompt = full_prompt});
  return state.arrived++;
}

BatchStep next_step(SchedulerState& state) {
  BatchStep step;
  int64_t rows = state.limits.rows;
  for (const bool prompts : {false, true})  // first the sequences that generate, then those with prompts to compute
    for (size_t i = 0; i < state.running.size() && rows > 0; ++i)
      if ((state.running[i].left() > 1) == prompts) rows -= plan(state, step, i, rows);
  while (rows > 0 && step.put_back.empty() && !state.waiting.empty() &&
         int64_t(state.running.size()) < state.limits.sequences && start(state, step))
    rows -= plan(state, step, state.running.size() - 1, rows);
  return step;
}

void done(SchedulerState& state, const BatchStep& step) {
  const int64_t size = state.blocks.tokens();
  for (const ScheduledTokens& w : step.work) {
    Sequence& s = state.at(w.number);
    s.computed += w.count;
    for (int64_t b = w.first / size; (b + 1) * size <= s.computed; ++b)
      s.blocks[size_t(b)] = state.blocks.keep(s.blocks[size_t(b)], b == 0 ? -1 : s.blocks[size_t(b - 1)],
                                              std::span(s.tokens).subspan(size_t(b * size), size_t(size)));
    // Release the blocks that the attention window has passed, but not the last complete block: keep() will need that
    // block as the predecessor of the next one.
    const int64_t hidden = std::min(before_window(s.computed, state.window), (s.computed / size - 1) * size);
    for (int64_t b = 0; (b + 1) * size <= hidden; ++b)
      if (int32_t& block = s.blocks[size_t(b)]; block >= 0) state.blocks.release(std::exchange(block, -1));
  }
}

void append(SchedulerState& state, int64_t number, int64_t token) { state.at(number).tokens.push_back(token); }

void finish(SchedulerState& state, int64_t number) {
  give_blocks_back(state, state.at(number));
  for (std::vector<Sequence>* of : {&state.running, &state.waiting})
    std::erase_if(*of, [&](const Sequence& s) { return s.number == number; });
}

std::string to_string(const BatchStep& step) {
  std::string out = str(step.rows(), step.rows() == 1 ? " row" : " rows");
  for (size_t i = 0; i < step.work.size(); ++i) {
    const ScheduledTokens& w = step.work[i];
    out += str(i ? ", " : ": ", w.number, " ");
    out += w.count == 1 ? str("at ", w.first) : str("[", w.first, ", ", w.first + w.count, ")");
  }
  const auto list = [&](const char* what, const std::vector<int64_t>& numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) out += str(i ? " " : what, numbers[i]);
  };
  list("; started ", step.started);
  list("; put back ", step.put_back);
  return out;
}

}  // namespace lockstep::serve
