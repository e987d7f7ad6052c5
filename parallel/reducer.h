#pragma once
// The reducer: the engine under every scheme that reduces gradients during backward (DDP, ZeRO 0 to 3). It listens to
// gradients as backward produces them, copies them into the flat memory of their bucket (a group of parameters), sums
// micro-batches in tree order (dist/summation_tree.h), and reduces complete buckets in an order that all
// ranks share. Misuse is an Error.
//
//   gradient arrives ─▶ copied into its bucket's memory ─▶ bucket complete ─┬─ in no_sync ─▶ a leaf of the tree
//                                                                           └─ else ─▶ sum of the tree
//                                                                                      ─▶ policy.start(): all_reduce,
//                                                                                         reduce_scatter, ...
//
//   end of backward  ─▶ all buckets have started, in one order on every rank ─▶ wait for them
//
// A Policy says in which memory a bucket's gradients are collected, which collective reduces the bucket, and what
// happens afterwards (ddp.cpp, gradient_sum.h; zero/stage.h).
//
// Gradients come in by one of two ways: hooks on the tape, or calls of add() if no single backward computes all of them
// (pipelines, 1-bit optimizers).
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/agreed.h"
#include "dist/summation_tree.h"
#include "parallel/agreement.h"

namespace lockstep::parallel {

/// Collects and reduces the gradients of some parameters; see the top of the file. A pass is one backward.
class Reducer {
 public:
  /// A parameter of the model, and its state in the current pass and step.
  struct Parameter {
    std::string name;
    Variable variable;
    bool is_expert = false;            ///< true for an expert: other ranks have a different parameter at this index
    size_t bucket = SIZE_MAX;          ///< SIZE_MAX: frozen when the reducer was made
    int64_t offset = 0;                ///< where it begins in the flat tensor of its bucket
    int expected = 1, arrivals = 0;    ///< gradients in this pass
    bool used = false;                 ///< true once the parameter has got a gradient in this step
    bool placeholder_cleared = false;  ///< true: the placeholder was removed, because a gradient is about to be added
    int hooks[2] = {0, 0};
    /// True if the parameter requires grad now.
    bool trains() const { return bucket != SIZE_MAX && variable.requires_grad(); }
  };
  /// Parameters whose gradients are reduced by one collective, and lie in one flat tensor.
  struct Bucket {
    std::vector<size_t> members;          ///< indices of parameters, by offset; empty: a frozen bucket, never reduced
    int64_t numel = 0;                    ///< elements of the flat tensor; gaps between members hold zeros
    TensorOptions options = {};           ///< dtype and device of the flat tensor
    DType dtype = f32;                    ///< dtype of the parameters
    dist::ProcessGroup* group = nullptr;  ///< ranks that share the bucket's own memory; null: only this rank reads it

    /// Gradients of the current micro-batch; undefined before the first one. With Rules::exposes_grad also the sum that
    /// is being reduced, until .grad are views of it.
    Tensor flat = {};
    dist::TreeSum sum = {};             ///< gradients of earlier micro-batches
    Tensor kept = {};                   ///< memory that is kept between steps
    int waiting = 0;                    ///< members that still expect a gradient in this pass
    std::function<void()> finish = {};  ///< completes the reduction that was started; empty: none is running
  };
  /// Behaviour that differs between DDP and ZeRO, fixed for the reducer's life.
  struct Rules {
    const char* name;     ///< prefix of error messages: "ddp"
    bool hooks = true;    ///< true: hooks on the tape deliver gradients; false: add() takes them out of .grad
    bool overlap = true;  ///< true: reduce buckets while backward runs; false: all at the end of backward
    // true: copy a gradient into flat memory as soon as it arrives. false: only when its bucket is complete, because
    // there is not enough flat memory for all buckets at once.
    bool at_once = true;
    // true: .grad becomes the reduced gradient, and gradients may be cleared one by one. false: the policy owns the
    // reduced gradients, and .grad is a placeholder.
    bool exposes_grad = false;
    /// True: in a group of one, a gradient is not copied to flat memory if its parameter is alone in its bucket and
    /// the gradient is dense and has no other owner.
    bool adopts_grad = false;
    const char* emptied = "";  ///< error text for reading a placeholder
  };
  /// A moment in the course of a backward.
  enum class Pass : uint8_t {
    begins,           ///< the policy may change the number of gradients that parameters expect
    bucket_complete,  ///< no further gradient of this bucket will arrive
    backward_ends,    ///< the policy may check that every expected gradient arrived
    ended             ///< normally or by an exception
  };
  /// Functions that differ between DDP and ZeRO stages, and that the reducer calls. `bucket` is an index of `buckets`.
  class Policy {
   public:
    virtual ~Policy() = default;
    /// Returns the flat memory for the gradients of the next micro-batch. Undefined: the reducer's own.
    virtual Tensor memory(size_t /*bucket*/) { return {}; }
    /// Called when all of the bucket's gradients of a micro-batch are in `flat`.
    virtual void filled(size_t /*bucket*/, const Tensor& /*flat*/) {}
    /// Starts the reduction of `sum`, this rank's sum over micro-batches. Returns a function that waits for the result.
    virtual std::function<void()> start(size_t bucket, const Tensor& sum) = 0;
    /// With Rules::exposes_grad, called when all buckets have been reduced. Returns true for each parameter that got a
    /// gradient on some rank. The .grad of all other parameters stays undefined, so optimizers skip them (no weight
    /// decay, no momentum).
    virtual std::vector<bool> used() { return {}; }
    /// Called at each moment of a backward that Pass lists.
    virtual void pass(Pass, size_t /*bucket*/ = SIZE_MAX) {}
    /// Called when the collected gradients have been discarded.
    virtual void discarded() {}
    /// Returns the text of the Error for a gradient of p that arrived in addition to the expected ones.
    virtual std::string unexpected(const Parameter& p);
    /// Called after the first reduction with the order in which gradients arrived on rank 0, by which every rank has
    /// sorted its buckets. Not called if they were in this order already.
    virtual void ordered(const std::vector<size_t>& /*parameters*/) {}
  };

  /// A parameter that does not require grad now must never get a gradient: that is an Error on all ranks. group: null
  /// for a single rank.
  Reducer(Policy& policy, dist::ProcessGroup* group, const Rules& rules, std::vector<Parameter> parameters);
  ~Reducer();
  Reducer(const Reducer&) = delete;

  /// Sets the buckets. They are reduced in the order of this list. The call is collective if ranks share the memory of
  /// buckets on a device other than the CPU.
  void cut(std::vector<Bucket> buckets);
  /// Divides parameters into buckets without gaps (plan_buckets(), flat.h), in the given order. collective: all
  /// ranks do so at the same time.
  void cut(const std::vector<size_t>& order, int64_t cap, int64_t first_cap, bool collective);
  /// The part of its bucket's flat tensor that belongs to a parameter, in the parameter's shape.
  static Tensor view(const Tensor& flat, const Parameter& p);

  // A pass begins when the first gradient arrives. A rank that will get no gradient calls begin_pass() so that it
  // takes part in the reductions.
  void begin_pass();
  /// Runs a pass without a backward: takes each .grad (zeros if it is undefined) as this rank's gradient of one
  /// micro-batch. If `reduces`, the pass ends with the reduction of all micro-batches, else it only collects this one.
  void add(bool reduces);
  void reduce();                                ///< reduces what add(false) has collected
  bool in_pass() const { return in_pass_; }     ///< true while a backward is running
  bool is_syncing() const { return syncing_; }  ///< true if the current pass ends with a reduction

  /// Begins a no_sync scope. Scopes may nest. A pass that begins inside a scope only collects gradients.
  void enter_no_sync() { ++no_sync_; }
  void leave_no_sync() { --no_sync_; }              ///< ends a no_sync scope
  bool in_no_sync() const { return no_sync_ > 0; }  ///< true inside a no_sync scope
  /// Discards collected gradients if .grad was cleared (zero_grad()) since the last micro-batch. Error if only some
  /// were cleared, unless Rules::exposes_grad is true.
  void notice_cleared();
  /// Discards all collected gradients and waits for reductions that are running.
  void forget();

  /// True if `grad` is the placeholder, not a gradient.
  bool is_placeholder(const Tensor& grad) const { return grad.defined() && grad.storage() == placeholder_.storage(); }
  /// Waits for the reduction of a bucket, if one is running.
  void finish(size_t bucket) {
    if (buckets[bucket].finish) std::exchange(buckets[bucket].finish, nullptr)();
  }

  std::vector<Parameter> parameters;  ///< in the order given to the constructor
  std::vector<Bucket> buckets;        ///< the buckets given to cut()

 private:
  /// True between passes if the reducer holds the parameter's gradients of this step. Unless the program has cleared
  /// it, .grad is then the placeholder.
  bool holds(const Parameter& p) const { return rules_.hooks && p.used && p.variable.numel() > 0; }
  void before_add(size_t i);
  void arrived(size_t i);
  void open(size_t bucket);
  Tensor own_memory(size_t bucket);
  void take(size_t i);
  void complete(size_t bucket);
  void start(size_t bucket);
  void launch();
  void finish_all();
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
  std::vector<size_t> order_;  // buckets in the order of their reductions
  size_t next_ = 0;            // index into order_ of the first bucket whose reduction has not started
  FrozenSince frozen_;
  std::vector<size_t> arrivals_;  // parameters in the order in which their gradients arrived
  std::optional<SharedParameters> shared_;
};

}  // namespace lockstep::parallel
