#pragma once
// The reducer under everything that sums gradients over ranks: DDP, ZeRO 0 to 3. It knows when a gradient has come,
// holds the flat memory of units, sums micro-batches in the tree, starts units in an order on which ranks agree, and
// refuses misuse.
//
//   gradient arrives ─▶ its part of the unit's flat memory ─▶ unit complete ─▶ [no_sync: leaf of the tree, done]
//                                                            ─▶ sum of the tree ─▶ policy.start(): all_reduce,
//                                                            reduce_scatter, ...
//   end of backward  ─▶ all units have started, in one order on every rank ─▶ wait for them ─▶ policy.finished()
//
// What differs is a Policy: in what memory a unit's gradients are collected, what starts when it is complete, what
// happens afterwards.
//
//            unit                      when complete                            afterwards
//   DDP      bucket                    all_reduce, or a hook                    .grad are views of the means
//   ZeRO 0   the same                  the same                                 every rank updates all
//   ZeRO 1   cut into owners' ranges   reduce_scatter, at the last micro-batch  owners update, all_gather
//   ZeRO 2   the same                  reduce_scatter, at every micro-batch     the same
//   ZeRO 3   the same, by module       the same                                 owners keep their shard
//
// They are ddp.cpp, zero/stage.cpp, stage1.cpp, stage2.cpp and stage3.cpp.
//
// Gradients that are handed in, not noticed (a pipeline's, a 1-bit optimizer's), go through GradientAccumulator
// (buckets.h): the same flat memory and tree without hooks.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/agreed.h"
#include "parallel/agreement.h"
#include "parallel/buckets.h"

namespace lockstep::parallel {

class Reducer {
 public:
  struct Parameter {
    std::string name;
    Variable variable;
    bool spread = false;                // other ranks have another in its place
    size_t unit = SIZE_MAX, place = 0;  // none: it was frozen when this was made
    int expected = 1;                   // gradients in this pass
    int seen = 0;                       // of which have come
    bool used = false;                  // had a gradient in a micro-batch of this step
    bool held = false;                  // its gradients lie in the reducer; .grad holds the placeholder
    bool stashed = false;               // the placeholder was taken away because a gradient comes
    int hooks[2] = {0, 0};
    bool trains() const { return unit != SIZE_MAX && variable.requires_grad(); }  // now
  };
  /// Parameters whose gradients travel together.
  struct Unit {
    FlatGradients gradients;
    std::vector<size_t> members;   // parameters; none: frozen ones
    int waiting = 0;               // members whose last gradient is still to come in this pass
    bool settled = false;          // all of this pass is in the flat memory
    std::function<void()> finish;  // ends the reduction that was started
  };
  struct Rules {
    const char* name;     // in front of messages: "ddp"
    bool overlap = true;  // start units while backward runs; off: all at its end
    // A gradient goes into flat memory when it comes; off: with its unit, for no rank has memory for all.
    bool at_once = true;
    // .grad shows what was reduced, and may be cleared one by one; off: it is the policy's, .grad a placeholder.
    bool shows = false;
    bool leaves = false;       // one rank's gradients may stay in the memory in which they came (FlatGradients::offer)
    const char* emptied = "";  // what reading a placeholder is told
  };
  class Policy {
   public:
    virtual ~Policy() = default;
    /// For the gradients of a micro-batch.
    virtual Tensor memory(size_t unit) = 0;
    /// All gradients of a micro-batch are in.
    virtual void filled(size_t /*unit*/, const Tensor& /*flat*/) {}
    /// Starts the reduction of this rank's sum over micro-batches; gives back what waits for it.
    virtual std::function<void()> start(size_t unit, const Tensor& sum) = 0;
    /// All units have been reduced.
    virtual void finished() {}
    /// May change what parameters expect.
    virtual void pass_begins() {}
    /// No gradient of this unit will come any more in this pass.
    virtual void complete(size_t /*unit*/) {}
    /// All gradients of a pass have come; and the pass is over, or was ended by an exception.
    virtual void check_pass() {}
    virtual void pass_ended() {}
    /// What was collected is not wanted any more.
    virtual void forgotten() {}
    /// Why a gradient more than expected cannot be.
    virtual std::string unexpected(const Parameter& p);
    /// After the first reduction: the order in which gradients came at rank 0, agreed.
    virtual void ordered(const std::vector<size_t>& parameters) = 0;
  };

  /// Listens to those of the parameters that require grad; a gradient of one of the others is an Error on all ranks.
  Reducer(Policy& policy, dist::ProcessGroup& group, const Rules& rules, std::vector<Parameter> parameters);
  ~Reducer();
  Reducer(const Reducer&) = delete;

  /// Makes these the units, reduced in this order.
  void cut(std::vector<Unit> units);
  /// Reduces units in the order in which they are complete when gradients come in this one.
  void reorder(const std::vector<size_t>& parameters);

  // A pass begins with the first gradient; whoever must answer other ranks without one says so himself.
  void begin_pass();
  void answer();  ///< a pass without backward: what was collected, and zeros
  bool in_pass() const { return in_pass_; }
  bool is_syncing() const { return syncing_; }  ///< this pass reduces

  void enter_no_sync() { ++no_sync_; }
  void leave_no_sync() { --no_sync_; }
  bool in_no_sync() const { return no_sync_ > 0; }
  void pause(bool wanted) { paused_ = wanted; }  ///< gradients are somebody else's
  bool is_paused() const { return paused_; }
  /// zero_grad() between micro-batches means: forget what was collected.
  void notice_cleared();
  void forget();
  bool holds_gradients() const;

  bool is_placeholder(const Tensor& grad) const { return grad.defined() && grad.storage() == placeholder_.storage(); }
  void finish(size_t unit) {
    if (units[unit].finish) std::exchange(units[unit].finish, nullptr)();
  }

  std::vector<Parameter> parameters;
  std::vector<Unit> units;

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
  Tensor placeholder_;  // emptied storage: reading it is an error
  int no_sync_ = 0;
  bool paused_ = false, in_pass_ = false, syncing_ = false, ordered_ = false;
  std::vector<size_t> order_;  // in which units are reduced
  size_t next_ = 0;            // of them, the first that has not started
  FrozenSince frozen_;
  std::vector<size_t> arrivals_;  // parameters in the order of their gradients
  std::optional<SharedParameters> shared_;
};

}  // namespace lockstep::parallel
