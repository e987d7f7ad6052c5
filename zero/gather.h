#pragma once
// Stage 3's units, whole and not: gathered when they are required, ahead of that while gathers come in the order of the
// last time, and freed.
//
// Vocabulary. Trace: the order of gathers in the last forward (or backward) that started at the same module; while the
// present one follows it, the next units are gathered ahead. Persistent: too small to be worth it, whole everywhere, as
// in stage 2. Live: whole now. Reuse distance: how many elements others will gather before this one is needed again.
#include <vector>

#include "zero/shard_store.h"

namespace lockstep::zero {

struct Trace {
  std::vector<size_t> recorded, now;  // units
  bool follows = false;
};

class Gather {
 public:
  struct State {
    bool gathered = false;  // the memory is there, and filled when fetch is done
    bool recorded = false;  // by replays of a graph, not now
    dist::Work fetch;
    uint32_t version = 0;      // of what was gathered
    int active = 0, pins = 0;  // forwards and gathered() scopes that want it now
    uint64_t needed_from = 0;  // in backward: the number before the first node of the call that needs it
  };
  explicit Gather(Stage& stage) : store(stage), states(stage.units.size()), s_(stage) {}

  /// Takes over a unit that is whole: the shard stays.
  void keep_shard(size_t unit);
  /// Returns when the unit is whole; gathers the next of the trace ahead.
  void require(size_t unit);
  /// Unless somebody holds it.
  void release(size_t unit);
  void release_all();
  void pin(size_t unit);
  void unpin(size_t unit);

  void start_trace(Trace& trace);
  void end_trace();
  /// After a forward: whether it is needed again soon, in the rest of this forward or in the backward behind it.
  bool is_worth_keeping(size_t unit, const Trace& backward) const;

  ShardStore store;
  std::vector<State> states;  // by unit

 private:
  bool is_whole(size_t unit);
  void fetch(size_t unit);
  void arrive(size_t unit);
  void fetch_ahead();

  Stage& s_;
  Trace* trace_ = nullptr;
  int64_t live_ = 0;  // elements of units that are whole now, without persistent ones
};

}  // namespace lockstep::zero
