#pragma once
// The reducer: the engine under every scheme that reduces gradients during backward (DDP, ZeRO 0 to 3). It listens to
// gradients as backward produces them, copies them into the flat memory of their unit (a group of parameters), sums
// micro-batches in tree order (dist/summation_tree.h), and starts the reduction of complete units in an order that all
// ranks share. Misuse is an Error.
//
//   gradient arrives ─▶ copied into its unit's flat memory ─▶ unit complete ─┬─ in no_sync ─▶ a leaf of the tree
//                                                                            └─ else ─▶ sum of the tree
//                                                                                       ─▶ policy.start(): all_reduce,
//                                                                                          reduce_scatter, ...
//
//   end of backward  ─▶ all units have started, in one order on every rank ─▶ wait for them ─▶ policy.finished()
//
// A Policy says in which memory a unit's gradients are collected, which collective reduces a complete unit, and what
// happens afterwards:
//
//            file              unit              collective of a complete unit              afterwards
//   DDP      ddp.cpp           a bucket          all_reduce, or a hook                      .grad: views of the mean
//   ZeRO 0   zero/stage.cpp    a bucket          all_reduce                                 every rank updates all
//   ZeRO 1   zero/stage1.cpp   cut into shards   reduce_scatter, at the last micro-batch    update shard, all_gather
//   ZeRO 2   zero/stage2.cpp   cut into shards   reduce_scatter, at every micro-batch       update shard, all_gather
//   ZeRO 3   zero/stage3.cpp   same, by module   reduce_scatter, at every micro-batch       update and keep shard
//
// Code that collects its gradients itself (pipelines, 1-bit optimizers) uses GradientAccumulator (buckets.h) instead:
// the same flat memory and tree, without hooks on the tape.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/agreed.h"
#include "parallel/agreement.h"
#include "parallel/buckets.h"

namespace lockstep::parallel {

/// Collects and reduces the gradients of some parameters; see the top of the file. A pass is one backward.
class Reducer {
 public:
  /// A parameter of the model, and its state in the current pass and step.
  struct Parameter {
    std::string name;
    Variable variable;
    bool spread = false;                ///< true for an expert: other ranks have a different parameter at this index
    size_t unit = SIZE_MAX, place = 0;  ///< unit (SIZE_MAX: frozen when the reducer was made), and index in the unit
    int expected = 1;                   ///< gradients expected in this pass
    int seen = 0;                       ///< gradients that have arrived in this pass
    bool used = false;                  ///< true once the parameter has got a gradient in this step
    bool held = false;                  ///< true while the reducer holds the gradients; .grad is then the placeholder
    bool stashed = false;               ///< true: the placeholder was removed, because a gradient is about to be added
    int hooks[2] = {0, 0};
    /// True if the parameter requires grad now.
    bool trains() const { return unit != SIZE_MAX && variable.requires_grad(); }
  };
  /// Parameters whose gradients are reduced by one collective.
  struct Unit {
    FlatGradients gradients;
    std::vector<size_t> members;   ///< indices of parameters; empty: a frozen unit, never reduced
    int waiting = 0;               ///< members that still expect a gradient in this pass
    bool settled = false;          ///< true once all gradients of this pass are in the flat memory
    std::function<void()> finish;  ///< completes the reduction that was started; empty: none is running
  };
  /// Behaviour that differs between DDP and ZeRO, fixed for the reducer's life.
  struct Rules {
    const char* name;     ///< prefix of error messages: "ddp"
    bool overlap = true;  ///< true: reduce units while backward runs; false: all at the end of backward
    // true: copy a gradient into flat memory as soon as it arrives. false: only when its unit is complete, because
    // there is not enough flat memory for all units at once.
    bool at_once = true;
    // true: .grad becomes the reduced gradient, and gradients may be cleared one by one. false: the policy owns the
    // reduced gradients, and .grad is a placeholder.
    bool shows = false;
    /// True: in a group of one rank, a gradient's memory may serve as the flat memory (FlatGradients::offer).
    bool leaves = false;
    const char* emptied = "";  ///< error text for reading a placeholder
  };
  /// Functions that differ between DDP and the ZeRO stages, and that the reducer calls. `unit` is an index of `units`.
  class Policy {
   public:
    virtual ~Policy() = default;
    /// Returns the flat memory for the gradients of the next micro-batch.
    virtual Tensor memory(size_t unit) = 0;
    /// Called when all of the unit's gradients of a micro-batch are in `flat`.
    virtual void filled(size_t /*unit*/, const Tensor& /*flat*/) {}
    /// Starts the reduction of `sum`, this rank's sum over micro-batches. Returns a function that waits for the result.
    virtual std::function<void()> start(size_t unit, const Tensor& sum) = 0;
    /// Called when all units have been reduced.
    virtual void finished() {}
    /// Called when a pass begins. May change the number of gradients that parameters expect.
    virtual void pass_begins() {}
    /// Called when no further gradient of this unit will arrive in this pass.
    virtual void complete(size_t /*unit*/) {}
    /// Called when backward has ended: checks that every expected gradient arrived.
    virtual void check_pass() {}
    /// Called when the pass is over, normally or by an exception.
    virtual void pass_ended() {}
    /// Called when the collected gradients have been discarded.
    virtual void forgotten() {}
    /// Returns the text of the Error for a gradient of p that arrived in addition to the expected ones.
    virtual std::string unexpected(const Parameter& p);
    /// Called after the first reduction with the order in which gradients arrived on rank 0; every rank gets this same
    /// order. Not called if units are reduced in this order already.
    virtual void ordered(const std::vector<size_t>& parameters) = 0;
  };

  /// Puts hooks on the parameters that require grad. A gradient of any other parameter is an Error on all ranks.
  Reducer(Policy& policy, dist::ProcessGroup& group, const Rules& rules, std::vector<Parameter> parameters);
  ~Reducer();
  Reducer(const Reducer&) = delete;

  /// Sets the units. They are reduced in the order of this list.
  void cut(std::vector<Unit> units);
  /// Sorts the units for gradients that arrive in the order `parameters`: the unit complete first is reduced first.
  void reorder(const std::vector<size_t>& parameters);

  // A pass begins by itself with the first gradient. A rank that will get no gradient calls begin_pass() so that it
  // takes part in the reductions.
  void begin_pass();
  void answer();  ///< runs a pass without a backward: reduces what was collected before, else zeros
  bool in_pass() const { return in_pass_; }     ///< true while a backward is running
  bool is_syncing() const { return syncing_; }  ///< true if the current pass ends with a reduction

  /// Begins a no_sync scope. Scopes may nest. A pass that begins inside a scope only collects gradients.
  void enter_no_sync() { ++no_sync_; }
  /// Ends a no_sync scope.
  void leave_no_sync() { --no_sync_; }
  bool in_no_sync() const { return no_sync_ > 0; }  ///< true inside a no_sync scope
  void pause(bool wanted) { paused_ = wanted; }  ///< true: from now on gradients stay in .grad, ignored by the reducer
  bool is_paused() const { return paused_; }     ///< true while pause(true) is in force
  /// Discards collected gradients if .grad was cleared (zero_grad()) since the last micro-batch. Error if only some
  /// were cleared, unless Rules::shows is true.
  void notice_cleared();
  /// Discards all collected gradients and waits for reductions that are running.
  void forget();
  bool holds_gradients() const;  ///< true if the reducer holds gradients of earlier micro-batches

  /// True if `grad` is the placeholder, not a gradient.
  bool is_placeholder(const Tensor& grad) const { return grad.defined() && grad.storage() == placeholder_.storage(); }
  /// Waits for the reduction of a unit, if one is running.
  void finish(size_t unit) {
    if (units[unit].finish) std::exchange(units[unit].finish, nullptr)();
  }

  std::vector<Parameter> parameters;  ///< in the order given to the constructor
  std::vector<Unit> units;            ///< the units given to cut()

 private:
  Tensor placeholder(const Parameter& p) const;
  void before_add(size_t i);
  void arrived(size_t i);
  void take(size_t i);
  void settle(size_t unit);
  void hold(const Unit& unit);
  void launch();
  void begin();
  void end();
  void abandon() noexcept;
  void agree_on_order();

  Policy& policy_;
  dist::ProcessGroup& group_;
  const Rules rules_;
  Tensor placeholder_;  // has no memory, so reading it is an Error
  int no_sync_ = 0;
  bool paused_ = false, in_pass_ = false, syncing_ = false, ordered_ = false;
  std::vector<size_t> order_;  // units in the order of their reductions
  size_t next_ = 0;            // index into order_ of the first unit that has not started
  FrozenSince frozen_;
  std::vector<size_t> arrivals_;  // parameters in the order in which their gradients arrived
  std::optional<SharedParameters> shared_;
};

}  // namespace lockstep::parallel
