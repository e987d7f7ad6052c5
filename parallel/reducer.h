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
// happens afterwards (buckets.h; zero/stage.h).
//
// Gradients come in by one of two entries: hooks on the tape, or add(), where no single backward makes them (pipelines,
// 1-bit optimizers).
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/agreed.h"
#include "dist/summation_tree.h"
#include "parallel/agreement.h"

namespace lockstep::parallel {

/// The gradients of some parameters of one dtype and device, in one flat tensor.
class FlatGradients {
 public:
  /// The layout of the flat tensor: where each parameter begins, the total number of elements, dtype and device. Gaps
  /// between parameters hold zeros.
  struct Offsets {
    std::vector<int64_t> offsets;
    int64_t whole = 0;
    TensorOptions options = {};
  };
  FlatGradients() = default;  ///< an object without parameters
  /// group: the ranks over which the gradients are summed. With a group, own_memory() gives a buffer that the other
  /// ranks can read (ProcessGroup::shared_empty()). Without a layout the parameters lie one after another.
  explicit FlatGradients(std::vector<Variable> parameters, dist::ProcessGroup* group = nullptr,
                         std::optional<Offsets> layout = {});

  size_t size() const { return parameters_.size(); }                    ///< number of parameters
  int64_t numel() const { return layout_.whole; }                       ///< elements of the flat tensor, gaps included
  int64_t count() const { return tree_.count(); }                       ///< number of micro-batches folded so far
  const Variable& parameter(size_t i) const { return parameters_[i]; }  ///< parameter number i
  /// Parameter i's part of a flat tensor, in the parameter's shape.
  Tensor view(const Tensor& flat, size_t i) const;

  /// Lets the next own_memory() return the memory of parameter i's gradient, which saves a copy. Has no effect unless
  /// parameter i is the only one, no other rank takes part, and the gradient is dense and held by nobody else.
  void offer(size_t i);
  /// Returns memory for one micro-batch: the gradient given to offer() if there is one. Otherwise the first micro-batch
  /// gets a buffer that is kept between steps and in which the sum is formed. Later micro-batches get new memory.
  Tensor own_memory();
  /// Begins a micro-batch whose flat tensor is `memory` (numel() elements), and zeroes the gaps in it.
  void open(Tensor memory);
  bool is_open() const { return flat_.defined(); }  ///< true if a micro-batch has begun and is not folded yet
  /// The flat tensor of the current micro-batch.
  const Tensor& flat() const { return flat_; }
  /// Copies .grad of parameter i into the flat tensor, makes .grad a view of the copy, and returns true. Without a
  /// gradient, or with `skip`, writes zeros, leaves .grad alone and returns false. If no micro-batch is open, calls
  /// open(own_memory()) first.
  bool take(size_t i, bool skip = false);
  /// Ends a micro-batch after take() of every parameter: its flat tensor becomes the next leaf of the summation tree.
  void fold();
  /// Returns the sum over all folded micro-batches and the current one, and forgets all of them.
  Tensor sum();

  /// discard() forgets all collected gradients. discard(i) sets those of parameter i in folded micro-batches to 0.
  void discard();
  void discard(size_t i);

 private:
  std::vector<Variable> parameters_;
  dist::ProcessGroup* group_ = nullptr;
  Offsets layout_;
  DType dtype_ = f32;  // dtype of the parameters
  Tensor buffer_;      // memory that is kept between steps
  Tensor offered_;     // a gradient that may serve as memory, see offer()
  Tensor flat_;        // gradients of the current micro-batch
  dist::TreeSum tree_;
};

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
    bool hooks = true;    ///< true: the tape's hooks give gradients; false: add() takes them away from .grad
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
  /// A moment in the course of a pass.
  enum class Pass : uint8_t {
    begins,         ///< the policy may change the number of gradients that parameters expect
    unit_complete,  ///< no further gradient of this unit will arrive
    backward_ends,  ///< the policy may check that every expected gradient arrived
    ended           ///< normally or by an exception
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
    /// Called in the course of a pass.
    virtual void pass(Pass, size_t /*unit*/ = SIZE_MAX) {}
    /// Called when the collected gradients have been discarded.
    virtual void forgotten() {}
    /// Returns the text of the Error for a gradient of p that arrived in addition to the expected ones.
    virtual std::string unexpected(const Parameter& p);
    /// Called after the first reduction with the order in which gradients arrived on rank 0; every rank gets this same
    /// order. Not called if units are reduced in this order already.
    virtual void ordered(const std::vector<size_t>& parameters) = 0;
  };

  /// A gradient of a parameter that does not require grad now is an Error on all ranks. group: null for a rank alone.
  Reducer(Policy& policy, dist::ProcessGroup* group, const Rules& rules, std::vector<Parameter> parameters);
  ~Reducer();
  Reducer(const Reducer&) = delete;

  /// Sets the units. They are reduced in the order of this list.
  void cut(std::vector<Unit> units);
  /// Sorts the units for gradients that arrive in the order `parameters`: the unit complete first is reduced first.
  void reorder(const std::vector<size_t>& parameters);

  // A pass begins by itself with the first gradient. A rank that will get no gradient calls begin_pass() so that it
  // takes part in the reductions.
  void begin_pass();
  /// A pass without a backward: each .grad, or zeros, is this rank's gradient of a micro-batch. reduces: whether the
  /// pass ends with a reduction of all micro-batches, or only collects this one.
  void add(bool reduces);
  void reduce();                                ///< reduces what add(false) has collected
  bool in_pass() const { return in_pass_; }     ///< true while a backward is running
  bool is_syncing() const { return syncing_; }  ///< true if the current pass ends with a reduction

  /// Begins a no_sync scope. Scopes may nest. A pass that begins inside a scope only collects gradients.
  void enter_no_sync() { ++no_sync_; }
  void leave_no_sync() { --no_sync_; }              ///< ends a no_sync scope
  bool in_no_sync() const { return no_sync_ > 0; }  ///< true inside a no_sync scope
  /// Discards collected gradients if .grad was cleared (zero_grad()) since the last micro-batch. Error if only some
  /// were cleared, unless Rules::shows is true.
  void notice_cleared();
  /// Discards all collected gradients and waits for reductions that are running.
  void forget();

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
  void begin(bool reduces);
  void end();
  void abandon() noexcept;
  void agree_on_order();

  Policy& policy_;
  dist::ProcessGroup* const group_;
  const Rules rules_;
  Tensor placeholder_;  // has no memory, so reading it is an Error
  int no_sync_ = 0;
  bool in_pass_ = false, syncing_ = false, ordered_ = false;
  std::vector<size_t> order_;  // units in the order of their reductions
  size_t next_ = 0;            // index into order_ of the first unit that has not started
  FrozenSince frozen_;
  std::vector<size_t> arrivals_;  // parameters in the order in which their gradients arrived
  std::optional<SharedParameters> shared_;
};

}  // namespace lockstep::parallel
