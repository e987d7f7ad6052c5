// Checks the lists of actions of a schedule. See schedule_check.h.
#include "pipeline/schedule_check.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace lockstep::pipeline {
namespace {

constexpr size_t most_errors = 8;
constexpr int kinds_of_action = int(What::receive_gradient) + 1;

}  // namespace

Check check_schedule(const Schedule& s, const Ties& ties) {
  Check check;
  const auto error = [&](const std::string& text) {
    if (check.errors.size() < most_errors) check.errors.push_back(text);
  };
  const int p = s.request.stages, v = s.request.chunks, m = s.request.micro_batches;
  if (int(s.ranks.size()) != p) error(str("expected a list for each of ", p, " ranks, got ", s.ranks.size()));
  for (int rank = 0; rank < int(s.ranks.size()) && check.right(); ++rank) {
    std::vector<std::array<int, kinds_of_action>> count(size_t(v) * size_t(m));  // number of times each action occurs
    std::vector<int> weights_done(static_cast<size_t>(v));
    const auto of = [&](int chunk, int micro) -> auto& { return count[size_t(chunk) * size_t(m) + size_t(micro)]; };
    for (const Action& a : s.ranks[size_t(rank)]) {
      const auto wrong = [&](const std::string& text) { error(str("rank ", rank, ", ", to_string(a), ": ", text)); };
      if (a.chunk < 0 || a.chunk >= v || a.micro_batch < 0 || a.micro_batch >= m) {
        wrong(str("expected micro-batches 0 to ", m - 1, " and chunks 0 to ", v - 1));
        continue;
      }
      auto& seen = of(a.chunk, a.micro_batch);
      const auto has = [&](What what) { return seen[size_t(what)] > 0; };
      const int stage = s.virtual_stage(rank, a.chunk);
      const bool before = s.is_remote(stage - 1, rank), after = s.is_remote(stage + 1, rank);
      if (++seen[size_t(a.what)] > 1) wrong("occurs twice");
      switch (a.what) {
        case What::forward:
          if (before && !has(What::receive_activation)) wrong(str("its input was not received from stage ", stage - 1));
          break;
        case What::backward:
        case What::backward_input:
          if (!has(What::forward)) wrong("comes before its forward");
          if (after && !has(What::receive_gradient)) wrong(str("its gradient was not received from stage ", stage + 1));
          if (has(What::backward) && has(What::backward_input)) wrong("has both a whole and a split backward");
          break;
        case What::backward_weight:
          if (!has(What::backward_input)) wrong("comes before its input gradient");
          break;
        case What::send_activation:
          if (!has(What::forward)) wrong("comes before the forward that makes it");
          ++check.messages;
          if (!after) wrong(str("stage ", stage, " has no remote neighbour to send it to"));
          break;
        case What::send_gradient:
          if (!has(What::backward) && !has(What::backward_input)) wrong("comes before the backward that makes it");
          ++check.messages;
          if (!before) wrong(str("stage ", stage, " has no remote neighbour to send it to"));
          break;
        case What::receive_activation:
          if (!before) wrong(str("stage ", stage, " receives no activation from another rank"));
          break;
        case What::receive_gradient:
          if (!after) wrong(str("stage ", stage, " receives no gradient from another rank"));
          break;
      }
      // Gradients must be summed in the order of the micro-batches on every rank, so that all sums have the same bits.
      if ((a.what == What::backward || a.what == What::backward_weight) &&
          weights_done[size_t(a.chunk)]++ != a.micro_batch) {
        wrong(str("expected the weights' gradients in the order of the micro-batches, ",
                  weights_done[size_t(a.chunk)] - 1, " is next"));
      }
    }
    for (int chunk = 0; chunk < v; ++chunk) {
      const int stage = s.virtual_stage(rank, chunk);
      const bool before = s.is_remote(stage - 1, rank), after = s.is_remote(stage + 1, rank);
      for (int micro = 0; micro < m; ++micro) {
        const auto& seen = of(chunk, micro);
        const auto expect = [&](bool there, What what) {
          if (!there) error(str("rank ", rank, ", stage ", stage, ": there is no ", to_string({what, micro, chunk})));
        };
        expect(seen[size_t(What::forward)], What::forward);
        expect(seen[size_t(What::backward)] || seen[size_t(What::backward_input)], What::backward);
        expect(seen[size_t(What::backward)] || seen[size_t(What::backward_weight)], What::backward_weight);
        expect(!after || seen[size_t(What::send_activation)], What::send_activation);
        expect(!before || seen[size_t(What::send_gradient)], What::send_gradient);
        expect(!before || seen[size_t(What::receive_activation)], What::receive_activation);
        expect(!after || seen[size_t(What::receive_gradient)], What::receive_gradient);
      }
    }
  }
  if (!check.right()) return check;
  const Simulation run = simulate(s, {}, ties);
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

}  // namespace lockstep::pipeline
