// ZeRO 3: a unit's parameters are all-gathered before use and freed after it. See gather.h for the terms.
#include "zero/gather.h"

#include <algorithm>

#include "autograd/tape.h"
#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep::zero {

Gather::Gather(Stage& stage) : store(stage), states(stage.units.size()), s_(stage) {
  for (auto& [name, module] : stage.module.named_modules()) {
    std::vector<Variable> read;
    nn::Fields fields;
    if (stage.options.module_size > 0 && module->parameter_count() <= stage.options.module_size) {
      read = module->parameters();
    } else {
      module->fields(fields);
      for (const auto& entry : fields.entries)
        if (entry.parameter) read.push_back(*entry.parameter);
    }
    for (const Variable& v : module->reads()) read.push_back(v);
    need(*module, read);
  }
}

Gather::~Gather() {
  for (auto& [module, caller] : callers_)
    for (const int hook : caller.hooks) caller.calls.remove_hook(hook);  // does nothing if the module is gone
}

// --- gathers ---

void Gather::keep_shard(size_t u) {
  Unit& unit = s_.units[u];
  store.put(u, unit.weights.narrow(0, s_.shard(unit).begin, s_.shard(unit).size()));
  unit.weights.storage()->empty(unit.tag.c_str());
}

/// True if the unit is gathered, or if its gather is running. If the unit was gathered in a graph recording that has
/// failed since, no gather has run: releases the unit and returns false. Error if a recording is running and the unit
/// was gathered before it, because the graph's replays would lack this gather.
bool Gather::is_gathered(size_t u) {
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
  state.version = storage.version();
  storage.refill();
  state.gathered = true;
  state.recorded = Graph::is_recording();
  live_ += unit.layout.full();
  if (unit.layout.full() == 0) return;
  const Tensor shard = moved(store.get(u, [this](size_t other) { states[other].fetch.wait(); }), s_.device);
  if (unit.layout.owner >= 0 && unit.layout.owner == unit.group->rank()) unit.weights.copy_(shard);
  state.fetch = s_.all_gather(unit, shard);
  state.arrives = true;
}

/// Waits until the unit is gathered. Then gives the buffer that held its shard back to the store.
void Gather::arrive(size_t u) {
  State& state = states[u];
  if (state.arrives) {
    const Waiting waiting(&Waited::gather);
    state.fetch.wait();
  }
  // The same bytes have returned, so tensors saved by the tape stay valid. Without NCCL the last of them may be written
  // by the thread of the collective, so this is not known before the wait.
  if (std::exchange(state.arrives, false)) s_.units[u].weights.storage()->restore_version(state.version);
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
  live_ -= unit.layout.full();
  LOCKSTEP_CHECK(storage.version() == state.version, "[zero] ", unit.tag, " was changed by '", storage.last_writer(),
                 "' while it was gathered for a forward or backward; stage 3 discards such changes, because each rank "
                 "keeps only its shard. Change parameters between steps, inside Zero::gathered(parameters, rank)");
}

void Gather::release_all() {
  for (size_t u = 0; u < states.size(); ++u) release(u);
}

void Gather::pin(size_t u) {
  if (s_.units[u].persistent) return;
  if (!is_gathered(u)) fetch(u);
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
  if (!is_gathered(u)) fetch(u);
  fetch_ahead();
  arrive(u);
}

void Gather::fetch_ahead() {
  if (!trace_ || !trace_->follows || !s_.options.overlap_comm) return;
  int64_t room = s_.options.prefetch_bucket_size;
  size_t k = trace_->now.size();
  for (; k < trace_->recorded.size(); ++k) {
    const size_t u = trace_->recorded[k];
    const int64_t full = s_.units[u].layout.full();
    room -= full;
    if (room < 0) break;
    if (is_gathered(u)) continue;
    if (live_ + full > s_.options.max_live_parameters) break;
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
    if (!states[u].gathered) store.give_back(u);  // read ahead but not needed; a step may change the file
}

/// True if a unit whose module has run will be needed again within max_reuse_distance, in the rest of this forward or
/// in the backward that follows.
bool Gather::is_worth_keeping(size_t u) const {
  const ZeroOptions& o = s_.options;
  if (o.max_reuse_distance == 0 || live_ > o.max_live_parameters || !trace_ || !trace_->follows) return false;
  int64_t distance = 0;
  const auto found = [&](const std::vector<size_t>& next, size_t k) {
    for (; k < next.size() && distance <= o.max_reuse_distance; ++k) {
      if (next[k] == u) return true;
      distance += s_.units[next[k]].layout.full();
    }
    return false;
  };
  return found(trace_->recorded, trace_->now.size()) || (NoGrad::grad_enabled() && found(backward_.recorded, 0));
}

// --- hooks ---

void Gather::need(nn::Module& m, const std::vector<Variable>& read) {
  for (const Variable& v : read) {
    const size_t u = s_.parameters[s_.index_of(v)].unit;
    if (u == SIZE_MAX || s_.units[u].persistent) continue;
    const auto [found, fresh] = callers_.try_emplace(&m);
    Caller& caller = found->second;
    if (fresh) {
      caller.hooks[0] = m.before_forward([this, &caller](nn::Module&, const std::vector<Variable>&) { enter(caller); });
      caller.hooks[1] =
          m.after_forward_all([this, &caller](nn::Module&, const std::vector<Variable>&,
                                              const std::vector<Variable>& outputs) { leave(caller, outputs); },
                              false);
      caller.calls = m.calls();
    }
    if (std::find(caller.units.begin(), caller.units.end(), u) == caller.units.end()) caller.units.push_back(u);
  }
}

void Gather::enter(Caller& caller) {
  // If an earlier call of this module still counts as running, an exception has ended it: remove it from calls_.
  for (size_t k = 0; k < calls_.size(); ++k)
    if (calls_[k].caller == &caller) pop(k);
  const bool grad = NoGrad::grad_enabled();
  if (calls_.empty() && !s_.reducer().in_pass()) start_trace(caller.traces[grad]);
  // With activation checkpointing, backward reruns the forward part by part. When the rerun of a part begins, backward
  // through the part that was rerun before is complete, so the units of that earlier part can be freed.
  if (calls_.empty() && s_.reducer().in_pass()) release_needed_from(pass_mark_ + 1);
  calls_.push_back({&caller, grad ? tape::next_number() : 0});
  for (const size_t u : caller.units) ++states[u].active;
  for (const size_t u : caller.units) require(u);
}

/// Ends the innermost running calls until `depth` calls are left. Returns the units of the ended calls.
std::vector<size_t> Gather::pop(size_t depth) {
  std::vector<size_t> ended;
  for (; calls_.size() > depth; calls_.pop_back()) {
    for (const size_t u : calls_.back().caller->units) {
      states[u].active = std::max(0, states[u].active - 1);
      ended.push_back(u);
    }
  }
  return ended;
}

void Gather::leave(Caller& caller, const std::vector<Variable>& outputs) {
  size_t depth = calls_.size();
  while (depth > 0 && calls_[depth - 1].caller != &caller) --depth;
  if (depth == 0) return;
  const uint64_t mark = calls_[depth - 1].mark;
  // End this call, and also calls inside it that returned no variables: leave() was not called for them.
  const std::vector<size_t> ended = pop(depth - 1);
  const bool grad = NoGrad::grad_enabled();
  for (const Variable& output : outputs) {
    if (!grad || !output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    const uint64_t number = output.impl()->node->number();
    if (number > mark) {  // the node was created by this call
      Variable(output).before_backward([this, &caller, number, mark, exists = std::weak_ptr<int>(alive_)] {
        if (!exists.expired()) before_backward(caller, number, mark);
      });
    }
  }
  if (s_.reducer().in_pass()) return;  // an activation checkpoint reran this forward: its backward follows at once
  for (const size_t u : ended)
    if (states[u].active == 0 && !is_worth_keeping(u)) release(u);
  if (!calls_.empty()) return;
  end_trace();
  if (!grad) release_all();
}

// --- backward ---

void Gather::release_needed_from(uint64_t number) {
  for (size_t u = 0; u < states.size(); ++u)
    if (states[u].needed_from >= number) release(u);
}

/// Called when backward reaches a call: the gradient of its output is complete, and its nodes run next. Nodes run in
/// descending order of their numbers, so backward is done with calls that began after this output. Frees their units.
void Gather::before_backward(const Caller& caller, uint64_t number, uint64_t mark) {
  LOCKSTEP_CHECK(!tape::in_recorded_pass(),
                 "[zero] stage 3 frees parameters before a recorded derivative (create_graph) can read them; use stage "
                 "2 or below for losses that contain gradients");
  if (!s_.reducer().in_pass()) s_.reducer().begin_pass();
  release_needed_from(number);
  for (const size_t u : caller.units) {
    if (s_.units[u].trains && s_.reducer().buckets[u].waiting == 0) continue;  // all its gradients have arrived
    require(u);
    states[u].needed_from = mark;
  }
}

void Gather::backward_begins() {
  pass_mark_ = tape::next_number();
  start_trace(backward_);
}

void Gather::backward_ends() {
  end_trace();
  release_all();
}

}  // namespace lockstep::zero
