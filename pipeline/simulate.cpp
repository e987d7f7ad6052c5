// Simulates a schedule. See simulate.h.
#include "pipeline/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace lockstep::pipeline {
namespace {

enum Event : int { forward_done, input_done, activation_sent, gradient_sent, added, events };

constexpr double never = std::numeric_limits<double>::infinity();

/// Returns the index of the backward that runs together with the forward at index `at`, as one computation
/// (StageCosts::paired), or 0 if none. It must be a backward that is not split, with only transfers between it and
/// the forward. The last rank's first backward runs alone, since the other ranks' backwards wait for it.
size_t other_of_pair(const PipelineSchedule& s, size_t rank, size_t at) {
  const auto& list = s.ranks[rank];
  if (list[at].what != Do::forward) return 0;
  size_t next = at + 1;
  while (next < list.size() && !is_compute(list[next].what)) ++next;
  const bool is_pair = next < list.size() && list[next].what == Do::backward &&
                       (int(rank) + 1 < s.request.stages || list[next].micro_batch > 0 || list[next].chunk != 1);
  return is_pair ? next : 0;
}

/// If a forward and a backward run as one computation, moves their receives before it and their sends after it.
PipelineSchedule pair_up(PipelineSchedule s) {
  const auto priority = [](const StepAction& a) { return is_send(a.what) ? 2 : is_compute(a.what) ? 1 : 0; };
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    const auto begin = s.ranks[rank].begin();
    for (size_t i = 0; i < s.ranks[rank].size(); ++i)
      if (const size_t other = other_of_pair(s, rank, i))
        std::stable_sort(begin + long(i), begin + long(other) + 1,
                         [&](const StepAction& a, const StepAction& b) { return priority(a) < priority(b); });
  }
  return s;
}

}  // namespace

Simulation simulate(const PipelineSchedule& schedule, const StageCosts& costs, const Ties& ties) {
  for (const double cost : {costs.forward, costs.input, costs.weight, costs.latency}) {
    LOCKSTEP_CHECK(std::isfinite(cost) && cost >= 0, "[simulate] expected finite costs of 0 or more, got ", cost);
  }
  const size_t p = schedule.ranks.size();
  const bool paired = costs.paired && schedule.request.kind == ScheduleKind::dualpipe_v;
  const PipelineSchedule s = paired ? pair_up(schedule) : schedule;
  const int last = s.virtual_stages() - 1;
  Simulation result;
  result.ranks.resize(p);
  result.busy.resize(p);
  result.kept.resize(p);
  const auto micro_batches = size_t(s.request.micro_batches);
  std::vector<double> times(size_t(s.virtual_stages()) * micro_batches * events, never);  // time of each event
  const auto time = [&](Event event, int stage, int micro) -> double& {
    return times.at((size_t(stage) * micro_batches + size_t(micro)) * events + event);
  };
  std::vector<size_t> next(p);
  std::vector<double> clock(p);
  std::vector<int> kept(p);

  // Runs the next action of a rank if its inputs are there; returns the virtual stage that it waits for, or -1.
  const auto step = [&](size_t rank) {
    const StepAction a = s.ranks[rank][next[rank]];
    const int stage = s.virtual_stage(int(rank), a.chunk), m = a.micro_batch;
    const bool remote_before = s.is_remote(stage - 1, int(rank)), remote_after = s.is_remote(stage + 1, int(rank));
    double& now = clock[rank];
    double start = now;
    int waits_for = stage;
    const auto need = [&](Event event, int of) {
      if (start < never) waits_for = of;
      start = std::max(start, time(event, of, m));
    };
    const bool weights = a.what == Do::backward || a.what == Do::backward_weight;
    // The gradients of tied parameters come from a later stage. A whole backward starts from them.
    if (a.what == Do::backward || a.what == Do::add)
      for (const TiedStages& tie : ties)
        if (tie.to == stage) need(added, tie.from);
    switch (a.what) {
      case Do::receive_activation: need(remote_before ? activation_sent : forward_done, stage - 1); break;
      case Do::receive_gradient: need(remote_after ? gradient_sent : input_done, stage + 1); break;
      case Do::forward:
        if (stage > 0 && !remote_before) need(forward_done, stage - 1);
        break;
      case Do::backward:
      case Do::backward_input:
        need(forward_done, stage);
        if (stage < last && !remote_after) need(input_done, stage + 1);
        break;
      case Do::backward_weight: need(input_done, stage); break;
      case Do::send_activation: need(forward_done, stage); break;
      case Do::send_gradient: need(input_done, stage); break;
      default: break;
    }
    if (start == never) return waits_for;
    const bool pair = paired && other_of_pair(s, rank, next[rank]),
               pair_ends = paired && next[rank] > 0 && other_of_pair(s, rank, next[rank] - 1) == next[rank];
    ++next[rank];
    double cost = 0;
    switch (a.what) {
      case Do::forward: cost = pair ? 0 : costs.forward; break;
      case Do::backward: cost = costs.input + costs.weight + (pair_ends ? costs.forward : 0); break;
      case Do::backward_input: cost = costs.input; break;
      case Do::backward_weight: cost = costs.weight; break;
      default: break;
    }
    now = start + cost * (costs.weights.empty() ? 1 : costs.weights[size_t(stage)]) / s.request.chunks;
    if (is_compute(a.what)) {
      result.ranks[rank].push_back({a, start, now});
      result.busy[rank] += now - start;
    }
    if (a.what == Do::forward)
      time(forward_done, stage, m) = now, result.kept[rank] = std::max(result.kept[rank], ++kept[rank]);
    if (a.what == Do::backward || a.what == Do::backward_input) time(input_done, stage, m) = now;
    if (weights) --kept[rank];
    if (a.what == Do::add) time(added, stage, m) = now;
    if (a.what == Do::send_activation) time(activation_sent, stage, m) = now + costs.latency;
    if (a.what == Do::send_gradient) time(gradient_sent, stage, m) = now + costs.latency;
    return -1;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < p; ++rank) {
      while (next[rank] < s.ranks[rank].size() && step(rank) < 0) moved = true;
    }
  }
  for (size_t rank = 0; rank < p; ++rank) {
    result.seconds = std::max(result.seconds, clock[rank]);
    if (next[rank] == s.ranks[rank].size()) continue;
    const int stage = step(rank);
    result.stuck.push_back(
        {int(rank), s.ranks[rank][next[rank]], stage >= 0 && stage <= last ? s.place(stage).rank : -1});
  }
  double busy = 0;
  for (const double one : result.busy) busy += one;
  if (result.seconds > 0) result.bubble = 1 - busy / (result.seconds * double(p));
  return result;
}

}  // namespace lockstep::pipeline
