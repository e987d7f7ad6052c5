#pragma once
// Stage 3 at run time: units of parameters are gathered when they are required, prefetched while the order of gathers
// repeats, and freed.
//
//   trace            the order of gathers in the last forward (or backward) that began at the same module; the next
//                    units are prefetched as long as the current order follows it
//   persistent       a unit too small to be sharded: every rank has all of it, as in stage 2
//   live             gathered: all its parameters are in memory at the moment
//   reuse distance   number of elements of other units that will be gathered before a unit is needed again
#include <vector>

#include "zero/shard_store.h"

namespace lockstep::zero {

/// The order of gathers in the running forward (or backward), and in the previous forward (or backward).
struct Trace {
  std::vector<size_t> recorded, now;  ///< indices of units
  bool follows = false;               ///< true while `now` equals the beginning of `recorded`
};

/// The state of all units, and the gathers that are running.
class Gather {
 public:
  /// State of a unit.
  struct State {
    bool gathered = false;     ///< true: the unit's memory exists, and is filled once `fetch` is done
    bool recorded = false;     ///< true: gathered in the recording of a graph, so by each replay, not now
    dist::Work fetch;          ///< the running all-gather
    uint32_t version = 0;      ///< version of the unit's storage when it was gathered
    int active = 0, pins = 0;  ///< running forwards, and gathered() scopes, that need the unit
    uint64_t needed_from = 0;  ///< in backward: the tape's number before the first node of the call that needs it
  };
  explicit Gather(Stage& stage) : store(stage), states(stage.units.size()), s_(stage) {}  ///< for the units of a stage

  /// Copies this rank's shard of a gathered unit into the store, and frees the memory of the unit.
  void keep_shard(size_t unit);
  /// Gathers a unit unless it is gathered already, and prefetches the next units of the trace.
  void require(size_t unit);
  /// Frees a unit unless it is pinned or persistent. Error if the unit was written to while it was gathered.
  void release(size_t unit);
  void release_all();       ///< release() for all units
  void pin(size_t unit);    ///< keeps a unit gathered until unpin(); calls nest
  void unpin(size_t unit);  ///< ends a pin()

  /// Begins to record the order of gathers in trace.now, and to compare it with the previous order, trace.recorded.
  void start_trace(Trace& trace);
  void end_trace();  ///< stores the recorded trace
  /// True if a unit whose module has run will be needed again within max_reuse_distance, in the rest of this forward or
  /// in the backward that follows.
  bool is_worth_keeping(size_t unit, const Trace& backward) const;

  ShardStore store;           ///< the parameter shards
  std::vector<State> states;  ///< the state of each unit

 private:
  bool is_whole(size_t unit);
  void fetch(size_t unit);
  void arrive(size_t unit);
  void fetch_ahead();

  Stage& s_;
  Trace* trace_ = nullptr;
  int64_t live_ = 0;  // elements of the live units, without persistent ones
};

}  // namespace lockstep::zero
