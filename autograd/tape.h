#pragma once
// The tape. A node is one recorded operation: it holds what its derivative needs and points to the nodes that computed
// its inputs. A result holds its node, so dropping the loss frees the graph, and several graphs can exist at once.
//
//      x ──┐                             backward() runs the reachable nodes by descending number, each
//      w ──┴─ matmul#1 ─ relu#2 ─ sum#3  once its gradient is complete, and frees it at once. A leaf (x, w)
//   leaves                        loss   is a node too: its derivative adds the gradient to .grad.
//
// Everything runs in loops, never by recursion: chains of a million operations can be differentiated and freed.
#include <atomic>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/short_list.h"
#include "autograd/variable.h"

namespace lockstep {

/// The node output that an input came from. Empty when the input requires no gradient.
struct Edge {
  Ref<Node> node;
  int output = 0;
};

class Saved;
class RecordedBackward;  // the Backward of create_graph: autograd/recorded.h
/// The pass as a derivative sees it: gradients of the outputs come in, gradients of the inputs go out.
class Backward {
 public:
  using Value = Tensor;  ///< type of gradients; Variable in RecordedBackward
  static constexpr bool is_recorded = false;
  /// For the derivative of `node`. `retains`: the graph is kept. `folds`: fold() need not return null.
  Backward(Node& node, bool retains, bool folds) : node_(node), retains_(retains), folds_(folds) {}
  bool retains() const { return retains_; }  ///< true: the graph is kept, saved tensors must stay as they are
  /// Gradient of output i; undefined if none arrived (only possible with several outputs). The derivative may move this
  /// tensor away, or overwrite it when Tensor::is_exclusive() is true.
  Tensor& grad(int i = 0) const;
  bool needs(int i) const;  ///< true when input i requires a gradient
  /// Adds `grad` to the gradient of input i. If the operation broadcast the input, `grad` is first summed to its shape.
  void give(int i, Tensor grad) const;
  /// The gradient that other operations have given to input i so far, for a derivative that adds to it in place (such
  /// as that of embedding, which is mostly zeros). Undefined if there is none yet, if its memory has gaps, and in
  /// AnomalyMode, which checks every gradient by itself.
  Tensor partial(int i) const;
  /// The derivative of the unary operation that computed input i, if no other node uses input i and no hook reads that
  /// input's gradient; else null. A caller that gets a derivative must apply it to the gradient before give().
  const struct UnaryGrad* fold(int i) const;
  const Tensor& input(int i, const Saved& saved) const;       ///< the saved input i; Error if changed in place
  const Tensor& output(const Saved& saved, int i = 0) const;  ///< the saved output i; Error if changed in place

 private:
  Node& node_;
  bool retains_, folds_;
};

/// One recorded operation, or a leaf.
class Node {
 public:
  struct Output {  ///< one result of the operation
    Shape shape;
    DType dtype = f32;
    Tensor grad;                            // accumulated in the running backward pass
    std::shared_ptr<struct GradWish> wish;  // what the maker of `grad` may compute beside it; mostly null
    struct Hook {                           ///< registered by on_grad() or before_backward()
      int id;
      GradHook call;
      bool looks = true;  // true: the hook reads the gradient (on_grad()); false: it does not (before_backward())
    };
    std::unique_ptr<std::vector<Hook>> hooks;
    int add_hook(Hook hook);  ///< returns the hook's id
    void run_hooks();         ///< lets each hook see and replace `grad`
  };

  Node(const char* name, int inputs, int outputs);  ///< assigns the next number()
  virtual ~Node() = default;
  Node(const Node&) = delete;

  virtual void run(Backward& backward) = 0;      ///< computes the gradients of the inputs
  virtual void run(RecordedBackward& backward);  ///< computes these gradients on the tape; Error if not supported
  virtual void release_saved() = 0;              ///< frees the saved tensors
  /// The derivative of a unary operation, for a consumer that fuses it into its own kernel (Backward::fold); or null.
  virtual const UnaryGrad* unary() const { return nullptr; }

  const char* name() const { return name_; }     ///< name of the operation
  uint64_t number() const { return number_; }    ///< order of recording; 0 for leaves
  bool is_leaf() const { return number_ == 0; }  ///< true for a Leaf
  /// True during a pass once the consumer has applied this node's derivative (Backward::fold).
  bool is_folded() const { return folded_; }
  ShortList<Edge, 3>& inputs() { return inputs_; }      ///< the outputs that are this node's inputs
  ShortList<Output, 1>& outputs() { return outputs_; }  ///< shapes, gradients and hooks of the results

  void retain() { refs_.fetch_add(1, std::memory_order_relaxed); }  ///< adds a reference
  void release() {  ///< drops a reference; the last one destroys the node
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(this);
  }
  static void* operator new(size_t bytes);                ///< uses a free list: every operation allocates a node
  static void operator delete(void* node, size_t bytes);  ///< back to the free list

 protected:
  struct LeafTag {};
  Node(LeafTag, const Tensor& tensor);

 private:
  friend class Pass;
  friend class RecordedPass;
  friend class Backward;
  static void destroy(Node* node);

  std::atomic<int> refs_{0};
  bool released_ = false, folded_ = false;
  Node* next_dying_ = nullptr;
  int uses_ = 0;       // gradients still to arrive in pass `pass_`
  uint64_t pass_ = 0;  // the backward pass that last visited this node
  uint64_t number_;    // order of recording; 0 for leaves
  const char* name_;
  ShortList<Edge, 3> inputs_;
  ShortList<Output, 1> outputs_;
};

/// The node of a variable that no recorded operation computed: a parameter, or an input that requires grad.
class Leaf final : public Node {
 public:
  explicit Leaf(const Tensor& tensor) : Node(LeafTag{}, tensor) {}  ///< records the tensor's shape and dtype
  void run(Backward&) override;
  void release_saved() override {}
  void add(Tensor& incoming);  ///< accumulates into .grad and calls on_complete

  Tensor grad;
  Variable recorded_grad;  // gradient from a backward with create_graph
  std::vector<std::pair<int, LeafHook>> on_complete;
};

/// A tensor kept for backward, with its version. get() throws an Error that names both operations if the tensor was
/// changed in place since.
class Saved {
 public:
  Saved() = default;
  Saved(const Tensor& tensor)
      : tensor_(tensor), version_(tensor.defined() ? tensor.storage()->version() : 0) {}         // NOLINT
  Saved(const Variable& variable) : Saved(variable.defined() ? variable.tensor() : Tensor()) {}  // NOLINT
  const Tensor& get(const char* reader = "backward") const;  ///< `reader` is named in the Error
  bool defined() const { return tensor_.defined(); }         ///< false if nothing was saved
  Tensor take(const char* reader = "backward");  ///< get(), and drops this handle: the reader may reuse the memory

 private:
  Tensor tensor_;
  uint32_t version_ = 0;
};

/// True when an operation on these inputs must be recorded.
bool needs_grad(std::initializer_list<const Variable*> inputs);
bool needs_grad(const std::vector<Variable>& inputs);

namespace tape {

/// Connects a node to its inputs, which may be undefined. Returns the node's results, with `output` as their value.
Variable attach(Ref<Node> node, std::initializer_list<const Variable*> inputs, Tensor output);
std::vector<Variable> attach(Ref<Node> node, const std::vector<Variable>& inputs, std::vector<Tensor> outputs);

/// A node whose derivative is a closure. Used by record().
template <class Fn> class Function final : public Node {
 public:
  /// `fn` is the derivative.
  Function(const char* name, int inputs, int outputs, Fn&& fn) : Node(name, inputs, outputs), fn_(std::move(fn)) {}
  void run(Backward& backward) override { (*fn_)(backward); }
  void run(RecordedBackward& backward) override {
    if constexpr (std::is_invocable_v<Fn&, RecordedBackward&>) (*fn_)(backward);
    else Node::run(backward);
  }
  void release_saved() override { fn_.reset(); }
  const UnaryGrad* unary() const override {
    if constexpr (std::is_same_v<Fn, UnaryGrad>) return fn_->folds() ? &*fn_ : nullptr;
    else return nullptr;
  }

 private:
  std::optional<Fn> fn_;
};

}  // namespace tape

/// Records one operation with its derivative, a closure over saved tensors. Call record() only if needs_grad(inputs):
///   Variable mul(const Variable& a, const Variable& b) {
///     Tensor out = mul(a.tensor(), b.tensor());
///     if (!needs_grad({&a, &b})) return out;
///     return record("mul", {&a, &b}, out, [a = Saved(a), b = Saved(b)](auto& back) {
///       if (back.needs(0)) back.give(0, mul(back.grad(), back.input(1, b)));
///       if (back.needs(1)) back.give(1, mul(back.grad(), back.input(0, a)));
///     });
///   }
template <class Fn>
Variable record(const char* name, std::initializer_list<const Variable*> inputs, Tensor output, Fn derivative) {
  return tape::attach(Ref<Node>(new tape::Function<Fn>(name, int(inputs.size()), 1, std::move(derivative))), inputs,
                      std::move(output));
}
/// record() with a list of inputs (as cat() needs) or several outputs (as checkpoint() needs).
template <class Fn>
std::vector<Variable> record(const char* name, const std::vector<Variable>& inputs, std::vector<Tensor> outputs,
                             Fn derivative) {
  const int count = int(outputs.size());
  return tape::attach(Ref<Node>(new tape::Function<Fn>(name, int(inputs.size()), count, std::move(derivative))), inputs,
                      std::move(outputs));
}

/// Checks the arguments of backward() and grad(): `root` must require grad, and `gradient` must have root's shape,
/// dtype and device. `gradient` may be undefined if `root` is real and has one element.
void check_start(const char* op, const Variable& root, const Tensor& gradient);

/// Marks `result` as a view that shares the storage of `base`, so that neither may be changed in place. Returns result.
Variable as_view(const Variable& base, Variable result);

/// Error if `variable` must not be changed in place: a leaf that requires grad, or a variable that has or is a view.
void check_in_place(const char* op, const Variable& variable);
/// Makes `variable` the output of the operation recorded in `result` (same storage, changed in place).
void rebase(Variable& variable, const Variable& result);

}  // namespace lockstep
