// Checks the lists of actions of a schedule. See schedule_check.h.
#include "pipeline/schedule_check.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>

#include "base/check.h"

namespace lockstep::pipeline {
namespace {

constexpr size_t max_errors = 8;
constexpr int kinds_of_action = int(Do::receive_gradient) + 1;
bool is_of_schedule(Do what) { return is_compute(what) || (what >= Do::send_activation && what < Do::add); }

}  // namespace

PipelineCheck check_schedule(const PipelineSchedule& s, const Ties& ties) {
  PipelineCheck check;
  const auto error = [&](const std::string& text) {
    if (check.errors.size() < max_errors) check.errors.push_back(text);
  };
  const int p = s.request.stages, v = s.request.chunks, m = s.request.micro_batches;
  if (int(s.ranks.size()) != p) error(str("expected a list for each of ", p, " ranks, got ", s.ranks.size()));
  for (int rank = 0; rank < int(s.ranks.size()) && check.right(); ++rank) {
    std::vector<std::array<int, kinds_of_action>> count(size_t(v) * size_t(m));  // number of times each action occurs
    std::vector<int> weights_done(static_cast<size_t>(v));
    const auto of = [&](int chunk, int micro) -> auto& { return count[size_t(chunk) * size_t(m) + size_t(micro)]; };
    for (const StepAction& a : s.ranks[size_t(rank)]) {
      const auto wrong = [&](const std::string& text) { error(str("rank ", rank, ", ", to_string(a), ": ", text)); };
      if (a.chunk < 0 || a.chunk >= v || a.micro_batch < 0 || a.micro_batch >= m) {
        wrong(str("expected micro-batches 0 to ", m - 1, " and chunks 0 to ", v - 1));
        continue;
      }
      if (!is_of_schedule(a.what)) {
        wrong("expected computations and transfers only; the engine adds the other actions");
        continue;
      }
      auto& counts = of(a.chunk, a.micro_batch);
      const auto has = [&](Do what) { return counts[size_t(what)] > 0; };
      const int stage = s.virtual_stage(rank, a.chunk);
      const bool before = s.is_remote(stage - 1, rank), after = s.is_remote(stage + 1, rank);
      if (++counts[size_t(a.what)] > 1) wrong("occurs twice");
      switch (a.what) {
        case Do::forward:
          if (before && !has(Do::receive_activation)) wrong(str("its input was not received from stage ", stage - 1));
          break;
        case Do::backward:
        case Do::backward_input:
          if (!has(Do::forward)) wrong("comes before its forward");
          if (after && !has(Do::receive_gradient)) wrong(str("its gradient was not received from stage ", stage + 1));
          if (has(Do::backward) && has(Do::backward_input)) wrong("has both a whole and a split backward");
          break;
        case Do::backward_weight:
          if (!has(Do::backward_input)) wrong("comes before its input gradient");
          break;
        case Do::send_activation:
          if (!has(Do::forward)) wrong("comes before the forward that makes it");
          ++check.messages;
          if (!after) wrong(str("stage ", stage, " has no remote neighbour to send it to"));
          break;
        case Do::send_gradient:
          if (!has(Do::backward) && !has(Do::backward_input)) wrong("comes before the backward that makes it");
          ++check.messages;
          if (!before) wrong(str("stage ", stage, " has no remote neighbour to send it to"));
          break;
        case Do::receive_activation:
          if (!before) wrong(str("stage ", stage, " receives no activation from another rank"));
          break;
        case Do::receive_gradient:
          if (!after) wrong(str("stage ", stage, " receives no gradient from another rank"));
          break;
        default: break;
      }
      // Gradients must be summed in the order of the micro-batches on every rank, so that all sums have the same bits.
      if ((a.what == Do::backward || a.what == Do::backward_weight) &&
          weights_done[size_t(a.chunk)]++ != a.micro_batch) {
        wrong(str("expected the weights' gradients in the order of the micro-batches, ",
                  weights_done[size_t(a.chunk)] - 1, " is next"));
      }
    }
    for (int chunk = 0; chunk < v; ++chunk) {
      const int stage = s.virtual_stage(rank, chunk);
      const bool before = s.is_remote(stage - 1, rank), after = s.is_remote(stage + 1, rank);
      for (int micro = 0; micro < m; ++micro) {
        const auto& counts = of(chunk, micro);
        const auto expect = [&](bool there, Do what) {
          if (!there)
            error(str("rank ", rank, ", stage ", stage, ": there is no ", to_string(StepAction{what, micro, chunk})));
        };
        expect(counts[size_t(Do::forward)], Do::forward);
        expect(counts[size_t(Do::backward)] || counts[size_t(Do::backward_input)], Do::backward);
        expect(counts[size_t(Do::backward)] || counts[size_t(Do::backward_weight)], Do::backward_weight);
        expect(!after || counts[size_t(Do::send_activation)], Do::send_activation);
        expect(!before || counts[size_t(Do::send_gradient)], Do::send_gradient);
        expect(!before || counts[size_t(Do::receive_activation)], Do::receive_activation);
        expect(!after || counts[size_t(Do::receive_gradient)], Do::receive_gradient);
      }
    }
  }
  if (!check.right()) return check;
  const Simulation run = simulate({s.request, step_of(s, ties)}, {}, ties);
  check.buffers = run.kept;
  for (const auto& stuck : run.stuck) {
    error(str("deadlock: rank ", stuck.rank, ", stage ", s.virtual_stage(stuck.rank, stuck.action.chunk), ", waits in ",
              to_string(stuck.action), " for rank ", stuck.waits_for));
  }
  for (bool more = check.right(); more; check.ahead *= 2) {
    const std::vector<std::string> stuck = check_streams(s, ties, {.ahead = check.ahead});
    if (stuck.empty()) break;
    more = check.ahead / 2 < v * m;  // at most v·m messages use a link
    if (!more) error(stuck[0]);
  }
  return check;
}

// --- messages on device streams ---
// A stream runs one message at a time, in order; a message completes when the sender's and the receiver's stream have
// both reached it. The check is stricter than the devices: a rank continues only when its inputs have arrived, as if
// its host waited for every message. Real hosts run ahead, so a schedule that passes here cannot deadlock.

namespace {

enum class Way : uint8_t { activation, gradient, tied };

/// One operation of a rank on a message.
struct Move {
  enum What : uint8_t { send, post, arrive } what;
  int message;
};

// The messages of one kind that a virtual stage sends, one for each micro-batch.
struct Sent {
  Way way;
  int stage;              // the sending virtual stage
  int from, to;           // ranks
  int link = -1, stream;  // link: index in orders_ (-1: no link); stream: the stream on which both ranks enqueue them
};

// All messages of a schedule. A message has the number i * m_ + micro-batch, where i is an index of slots_ and m_ the
// number of micro-batches.
class Traffic {
 public:
  Traffic(const PipelineSchedule& s, const Ties& ties, const DeviceStreams& streams)
      : s_(s), lists_(step_of(s, ties)), ties_(ties), m_(s.request.micro_batches) {
    const int last = s.virtual_stages() - 1;
    for (int stage = 0; stage <= last; ++stage) add(Way::activation, stage, std::min(stage + 1, last), streams);
    for (int stage = 0; stage <= last; ++stage) add(Way::gradient, stage, std::max(stage - 1, 0), streams);
    for (const TiedStages& tie : ties) add(Way::tied, tie.from, tie.to, streams);
    orders_.resize(links_.size());
    for (int rank = 0; rank < int(s.ranks.size()); ++rank)
      for_each_send(rank, [&](int message) { orders_[size_t(slot_of(message).link)].push_back(message); });
    for (int rank = 0; rank < int(s.ranks.size()); ++rank) moves_.push_back(moves_of(rank));
  }

  std::vector<std::string> stuck(int ahead) const;

 private:
  void add(Way way, int stage, int to_stage, const DeviceStreams& streams) {
    Sent slot{way, stage, s_.place(stage).rank, s_.place(to_stage).rank, -1, -1};
    if (slot.from != slot.to) {
      const auto [low, high] = std::minmax(slot.from, slot.to);
      slot.link = links_.try_emplace({way, slot.from, slot.to}, int(links_.size())).first->second;
      slot.stream =
          streams.one_for_both_ways ? pairs_.try_emplace({low, high}, int(pairs_.size())).first->second : slot.link;
    }
    slots_.push_back(slot);
  }
  const Sent& slot_of(int message) const { return slots_[size_t(message / m_)]; }
  int number(size_t slot, int micro_batch) const { return int(slot) * m_ + micro_batch; }
  std::string text(int message) const {
    constexpr const char* names[] = {"activation", "gradient", "tied gradient"};
    const Sent& slot = slot_of(message);
    return str("the ", names[int(slot.way)], " of micro-batch ", message % m_, ", stage ", slot.stage);
  }
  /// Calls fn with each message that an action sends.
  template <class Fn> void sends_of(int rank, const StepAction& a, const Fn& fn) const {
    const auto stage = size_t(s_.virtual_stage(rank, a.chunk)), stages = size_t(s_.virtual_stages());
    const auto sends = [&](size_t slot) {
      if (slots_[slot].link >= 0) fn(number(slot, a.micro_batch));  // else to another chunk of the rank
    };
    if (a.what == Do::send_activation) sends(stage);
    if (a.what == Do::send_gradient) sends(stages + stage);
    for (size_t t = 0; t < ties_.size() && a.what == Do::add; ++t)
      if (ties_[t].from == int(stage)) sends(2 * stages + t);
  }
  template <class Fn> void for_each_send(int rank, const Fn& fn) const {
    for (const StepAction& a : lists_[size_t(rank)]) sends_of(rank, a, fn);
  }
  std::vector<Move> moves_of(int rank) const;

  const PipelineSchedule& s_;
  const Lists lists_;
  const Ties& ties_;
  const int m_;
  std::vector<Sent> slots_;  // activations and gradients by virtual stage, then ties
  std::map<std::tuple<Way, int, int>, int> links_;
  std::map<std::pair<int, int>, int> pairs_;
  std::vector<std::vector<int>> orders_;  // messages of each link
  std::vector<std::vector<Move>> moves_;  // what each rank does, in order
};

/// The operations on messages that the engine performs on this rank, in order (transfers.cpp). To get a message, it
/// first waits for the earlier messages of the same link. Afterwards it starts to receive the link's next message,
/// before that is needed. Assumes that the shapes of activations are known, as they are after the first step.
std::vector<Move> Traffic::moves_of(int rank) const {
  std::vector<Move> moves;
  std::vector<size_t> posted(links_.size()), taken(links_.size());  // positions in each link's order
  std::vector<bool> has_come(slots_.size() * size_t(m_)), has_run(has_come.size());
  const auto stages = size_t(s_.virtual_stages());
  const auto fetch = [&](size_t slot, int micro_batch) {
    if (slots_[slot].link < 0) return;
    const auto link = size_t(slots_[slot].link);
    const std::vector<int>& order = orders_[link];
    const auto post = [&] { moves.push_back({Move::post, order[posted[link]++]}); };
    while (!has_come[size_t(number(slot, micro_batch))] && taken[link] < order.size()) {
      if (posted[link] == taken[link]) post();
      const int next = order[taken[link]++];
      moves.push_back({Move::arrive, next});
      has_come[size_t(next)] = true;
    }
    if (posted[link] > taken[link] || posted[link] == order.size()) return;
    // A gradient has the shapes of the forward's outputs, so its receive starts only after that micro-batch's forward.
    const Sent& next = slot_of(order[posted[link]]);
    if (next.way != Way::gradient || has_run[size_t(number(size_t(next.stage) - 1, order[posted[link]] % m_))]) post();
  };
  for (const StepAction& a : lists_[size_t(rank)]) {
    const auto stage = size_t(s_.virtual_stage(rank, a.chunk));
    if (a.what == Do::receive_activation) fetch(stage - 1, a.micro_batch);
    if (a.what == Do::receive_gradient) fetch(stages + stage + 1, a.micro_batch);
    if (a.what == Do::forward) has_run[size_t(number(stage, a.micro_batch))] = true;
    if (a.what == Do::backward || a.what == Do::add)
      for (size_t t = 0; t < ties_.size(); ++t)
        if (ties_[t].to == int(stage)) fetch(2 * stages + t, a.micro_batch);
    sends_of(rank, a, [&](int message) { moves.push_back({Move::send, message}); });
  }
  return moves;
}

/// Runs all ranks as far as possible; returns what each blocked rank waits for.
std::vector<std::string> Traffic::stuck(int ahead) const {
  const size_t ranks = moves_.size(), streams = pairs_.empty() ? links_.size() : pairs_.size();
  std::vector<size_t> next(ranks);
  std::vector<int> under_way(links_.size());  // sends in flight on each link
  std::vector<bool> done(slots_.size() * size_t(m_));
  struct Ends {
    std::deque<int> low, high;  // messages that each rank has enqueued on a stream
  };
  std::vector<Ends> all(streams);
  const auto end = [&](int message, int rank) -> std::deque<int>& {
    const Sent& slot = slot_of(message);
    Ends& ends = all[size_t(slot.stream)];
    return rank == std::min(slot.from, slot.to) ? ends.low : ends.high;
  };
  const auto waits = [&](const Move& move) {
    if (move.what == Move::arrive) return !done[size_t(move.message)];
    return move.what == Move::send && under_way[size_t(slot_of(move.message).link)] >= ahead;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (; next[rank] < moves_[rank].size() && !waits(moves_[rank][next[rank]]); ++next[rank]) {
        const Move& move = moves_[rank][next[rank]];
        if (move.what == Move::send) ++under_way[size_t(slot_of(move.message).link)];
        if (move.what != Move::arrive) end(move.message, int(rank)).push_back(move.message);
        moved = true;
      }
    }
    for (auto& [low, high] : all) {
      while (!low.empty() && !high.empty() && low.front() == high.front()) {
        done[size_t(low.front())] = true;
        --under_way[size_t(slot_of(low.front()).link)];
        low.pop_front();
        high.pop_front();
        moved = true;
      }
    }
  }
  std::vector<std::string> errors;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (next[rank] == moves_[rank].size()) continue;
    const Move& move = moves_[rank][next[rank]];
    const bool arrives = move.what == Move::arrive;
    std::string error = str("deadlock: rank ", rank, arrives ? " waits for " : " waits, before it sends ",
                            text(move.message), arrives ? "" : ", until its earlier messages have been sent");
    const std::deque<int>& queue = end(move.message, int(rank));
    if (arrives && !queue.empty() && queue.front() != move.message)
      error += str(", behind ", text(queue.front()), " on its stream");
    errors.push_back(error);
  }
  for (const auto& [low, high] : all)
    for (const std::deque<int>* queue : {&low, &high})
      if (!queue->empty() && errors.empty()) errors.push_back(str("deadlock: no rank receives ", text(queue->front())));
  return errors;
}

}  // namespace

std::vector<std::string> check_streams(const PipelineSchedule& schedule, const Ties& ties,
                                       const DeviceStreams& streams) {
  return Traffic(schedule, ties, streams).stuck(streams.ahead);
}

}  // namespace lockstep::pipeline
