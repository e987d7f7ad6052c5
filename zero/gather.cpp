// ZeRO 3: a unit's parameters are all-gathered before use and freed after it. See gather.h for the terms.
#include "zero/gather.h"

#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep::zero {

void Gather::keep_shard(size_t u) {
  Unit& unit = s_.units[u];
  store.put(u, unit.weights.narrow(0, s_.shard(unit).begin, s_.shard(unit).size()));
  unit.weights.storage()->empty(unit.tag.c_str());
}

/// True if the unit is gathered, or if its gather is running. If the unit was gathered in a graph recording that has
/// failed since, no gather has run: releases the unit and returns false. Error if a recording is running and the unit
/// was gathered before it, because the graph's replays would lack this gather.
bool Gather::is_whole(size_t u) {
  const State& state = states[u];
  if (!state.gathered || state.recorded == Graph::is_recording()) return state.gathered;
  LOCKSTEP_CHECK(state.recorded, "[zero] expected no gathered parameters when a recording begins, got ",
                 s_.units[u].tag, "; before it, call backward() after each forward, and end gathered() scopes");
  release(u);
  return false;
}

void Gather::fetch(size_t u) {
  Unit& unit = s_.units[u];
  State& state = states[u];
  Storage& storage = *unit.weights.storage();
  const uint32_t version = state.version = storage.version();
  storage.refill();
  state.gathered = true;
  state.recorded = Graph::is_recording();
  live_ += unit.layout.whole();
  if (unit.layout.whole() == 0) return;
  const Tensor shard = store.get(u, [this](size_t other) { states[other].fetch.wait(); }).to(s_.device);
  if (unit.layout.owner >= 0 && unit.layout.owner == unit.group->rank()) unit.weights.copy_(shard);
  state.fetch = s_.share(unit, shard);
  storage.restore_version(version);  // the same bytes return, so tensors saved by the tape stay valid
}

/// Waits until the unit is gathered. Then gives the buffer that held its shard back to the store.
void Gather::arrive(size_t u) {
  states[u].fetch.wait();
  store.give_back(u);
}

void Gather::release(size_t u) {
  Unit& unit = s_.units[u];
  State& state = states[u];
  if (!state.gathered || unit.persistent || state.pins > 0) return;
  arrive(u);
  state.fetch = {};
  Storage& storage = *unit.weights.storage();
  storage.empty(unit.tag.c_str());
  state.gathered = false;
  state.needed_from = 0;
  live_ -= unit.layout.whole();
  LOCKSTEP_CHECK(storage.version() == state.version, "[zero] ", unit.tag, " was changed by '", storage.last_writer(),
                 "' while it was gathered for a forward or backward; stage 3 discards such changes, because each rank "
                 "keeps only its shard. Change parameters between steps, inside Zero::gathered(parameters, rank)");
}

void Gather::release_all() {
  for (size_t u = 0; u < states.size(); ++u) release(u);
}

void Gather::pin(size_t u) {
  if (s_.units[u].persistent) return;
  if (!is_whole(u)) fetch(u);
  ++states[u].pins;
  arrive(u);
}

void Gather::unpin(size_t u) {
  if (s_.units[u].persistent || --states[u].pins > 0) return;
  states[u].version = s_.units[u].weights.storage()->version();  // gathered() has already checked for writes
  if (states[u].active == 0) release(u);
}

void Gather::require(size_t u) {
  if (trace_) {
    trace_->now.push_back(u);
    const size_t n = trace_->now.size();
    trace_->follows = trace_->follows && n <= trace_->recorded.size() && trace_->recorded[n - 1] == u;
  }
  if (!is_whole(u)) fetch(u);
  fetch_ahead();
  arrive(u);
}

void Gather::fetch_ahead() {
  if (!trace_ || !trace_->follows || !s_.options.overlap_comm) return;
  int64_t room = s_.options.prefetch_bucket_size;
  size_t k = trace_->now.size();
  for (; k < trace_->recorded.size(); ++k) {
    const size_t u = trace_->recorded[k];
    const int64_t whole = s_.units[u].layout.whole();
    room -= whole;
    if (room < 0) break;
    if (is_whole(u)) continue;
    if (live_ + whole > s_.options.max_live_parameters) break;
    if (!store.can_get(u)) return;
    fetch(u);
  }
  for (; store.room() && k < trace_->recorded.size(); ++k) {  // prefetch from the file further ahead
    if (!states[trace_->recorded[k]].gathered) store.read_ahead(trace_->recorded[k]);
  }
}

void Gather::start_trace(Trace& trace) {
  trace_ = &trace;
  trace.now.clear();
  trace.follows = !trace.recorded.empty();
}

void Gather::end_trace() {
  if (trace_) trace_->recorded = std::move(trace_->now);
  trace_ = nullptr;
  for (const size_t u : store.read())
    if (!states[u].gathered) store.give_back(u);  // not needed, and a step may change the file
}

bool Gather::is_worth_keeping(size_t u, const Trace& backward) const {
  const ZeroOptions& o = s_.options;
  if (o.max_reuse_distance == 0 || live_ > o.max_live_parameters || !trace_ || !trace_->follows) return false;
  int64_t distance = 0;
  const auto found = [&](const std::vector<size_t>& next, size_t k) {
    for (; k < next.size() && distance <= o.max_reuse_distance; ++k) {
      if (next[k] == u) return true;
      distance += s_.units[next[k]].layout.whole();
    }
    return false;
  };
  return found(trace_->recorded, trace_->now.size()) || (NoGrad::grad_enabled() && found(backward.recorded, 0));
}

}  // namespace lockstep::zero
