#pragma once
// Stage 3 at run time: units of parameters are gathered when a module needs them, prefetched while the order of gathers
// repeats, and freed. Hooks around a module's forward gather and free; a hook on its output gathers again when backward
// reaches it. In backward a unit is freed when all its gradients have arrived, because nothing reads it after that, or
// when backward has passed the beginning of the call that needs it.
//
//   trace            the order of gathers in the last forward (or backward) that began at the same module; the next
//                    units are prefetched as long as the current order follows it
//   persistent       a unit too small to be sharded: every rank has all of it, as in stage 2
//   live             gathered: all its parameters are in memory at the moment
//   reuse distance   number of elements of other units that will be gathered before a unit is needed again
#include <map>
#include <memory>
#include <vector>

#include "zero/offload/shard_store.h"

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
    bool recorded = false;     ///< true: a graph recording holds the gather: each replay gathers, nothing runs now
    dist::Work fetch;          ///< the running all-gather
    bool arrives = false;      ///< true from the start of an all-gather until the wait for it
    uint32_t version = 0;      ///< version of the unit's storage when it was gathered
    int active = 0, pins = 0;  ///< numbers of running forwards and of gathered() scopes that need the unit
    uint64_t needed_from = 0;  ///< in backward: the tape's number before the first node of the call that needs it
  };
  explicit Gather(Stage& stage);  ///< puts hooks on the modules; the stage must have planned its units
  ~Gather();
  Gather(const Gather&) = delete;

  /// Copies this rank's shard of a gathered unit into the store, and frees the memory of the unit.
  void keep_shard(size_t unit);
  /// Gathers a unit unless it is gathered already, and prefetches the next units of the trace.
  void require(size_t unit);
  /// Frees a unit unless it is pinned or persistent. Error if the unit was written to while it was gathered.
  void release(size_t unit);
  void release_all();       ///< release() for all units
  void pin(size_t unit);    ///< keeps a unit gathered until unpin(); calls nest
  void unpin(size_t unit);  ///< ends a pin()

  /// Makes calls of `module` gather the units of these parameters, because its forward reads them.
  void need(nn::Module& module, const std::vector<Variable>& parameters);
  /// Number of hooks on a module.
  int hooks_on(const nn::Module& module) const { return callers_.count(&module) ? 2 : 0; }
  void backward_begins();
  void backward_ends();

  ShardStore store;           ///< the parameter shards
  std::vector<State> states;  ///< the state of each unit

 private:
  bool is_gathered(size_t unit);
  void fetch(size_t unit);
  void arrive(size_t unit);
  void fetch_ahead();
  /// Begins to record the order of gathers in trace.now, and to compare it with the previous order, trace.recorded.
  void start_trace(Trace& trace);
  void end_trace();
  bool is_worth_keeping(size_t unit) const;

  /// A module that needs units for its forward.
  struct Caller {
    nn::Module::Calls calls;
    std::vector<size_t> units;
    int hooks[2] = {0, 0};
    Trace traces[2];  // gathers of forwards that begin here: [0] without, [1] with gradients
  };
  /// A forward that is running.
  struct Call {
    Caller* caller = nullptr;
    uint64_t mark = 0;  // the tape's number before the call's first node
  };
  void enter(Caller& caller);
  void leave(Caller& caller, const std::vector<Variable>& outputs);
  void before_backward(const Caller& caller, uint64_t number, uint64_t mark);
  std::vector<size_t> pop(size_t depth);
  void release_needed_from(uint64_t number);

  Stage& s_;
  Trace* trace_ = nullptr;
  int64_t live_ = 0;  // elements of the live units, without persistent ones
  std::map<const nn::Module*, Caller> callers_;
  std::vector<Call> calls_;  // running forwards, innermost last
  Trace backward_;
  uint64_t pass_mark_ = 0;                                 // the tape's number at the beginning of the backward pass
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // output hooks may outlive this object and check it
};

}  // namespace lockstep::zero
