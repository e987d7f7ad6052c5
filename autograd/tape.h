#pragma once
// The tape. A node is one recorded operation: it holds what its derivative needs and points at the nodes that made its
// inputs. A result holds its node, so dropping the loss frees the graph, and several graphs can be in flight.
//
//      x ──┐                          backward() runs the reachable nodes by descending number, each once its
//      w ──┴─ matmul#1 ─ relu#2 ─ sum#3     gradient is complete, and frees it at once. A leaf (x, w) is a node
//     leaves                          loss  too: what it does with a gradient is add it to .grad.
//
// Everything runs in loops, never by recursion: a chain of a million operations is legal, backward and when dropped.
#include <atomic>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/short_list.h"
#include "autograd/variable.h"

namespace lockstep {

/// Which output of which node made an input. Empty when no gradient is wanted there.
struct Edge {
  Ref<Node> node;
  int output = 0;
};

struct UnaryGrad;
class Saved;
class RecordedBackward;  // as Backward, on the tape: autograd/recorded.h
/// What a derivative sees: the gradients of its outputs, and where to put those of its inputs.
class Backward {
 public:
  using Value = Tensor;
  static constexpr bool is_recorded = false;
  Backward(Node& node, bool retains, bool folds) : node_(node), retains_(retains), folds_(folds) {}
  /// The graph is kept for another pass, so nothing saved may be overwritten.
  bool retains() const { return retains_; }
  /// Gradient of output i; undefined when nothing flowed back there (only in operations with several outputs). The
  /// derivative may take it or overwrite it when it is_exclusive().
  Tensor& grad(int i = 0) const;
  /// Whether input i wants a gradient at all.
  bool needs(int i) const;
  /// Hands over the gradient of input i, of the input's shape or of one that the input was broadcast to.
  void give(int i, Tensor grad) const;
  /// What is already collected for input i when it may be added into in place, else undefined, as in AnomalyMode, which
  /// looks at each part. For operations whose own gradient is mostly zeros (embedding), or whose kernel can add.
  Tensor partial(int i) const;
  /// The derivative of what made input i, when its gradient comes from here alone and nobody looks at it: what is given
  /// must have gone through it. Else null.
  const UnaryGrad* fold(int i) const;
  const Tensor& input(int i, const Saved& saved) const;  // what was saved of it
  const Tensor& output(const Saved& saved, int i = 0) const;

 private:
  Node& node_;
  bool retains_, folds_;
};

/// One recorded operation, or a leaf.
class Node {
 public:
  struct Output {
    Shape shape;
    DType dtype = f32;
    Tensor grad;  // collected so far in the running backward pass
    struct Hook {
      int id;
      GradHook call;
      bool looks = true;  // at the gradient
    };
    std::unique_ptr<std::vector<Hook>> hooks;
    int add_hook(Hook hook);  // gives back its id
    void run_hooks();
  };

  Node(const char* name, int inputs, int outputs);
  virtual ~Node() = default;
  Node(const Node&) = delete;

  /// Computes the gradients of the inputs.
  virtual void run(Backward& backward) = 0;
  virtual void run(RecordedBackward& backward);  ///< on the tape; Error when the derivative cannot be recorded
  virtual void release_saved() = 0;              ///< frees what was saved
  /// The derivative, where a product may fold it into the gradient that it makes.
  virtual const UnaryGrad* unary() const { return nullptr; }

  const char* name() const { return name_; }
  uint64_t number() const { return number_; }
  bool is_leaf() const { return number_ == 0; }
  /// In a pass: its gradient has gone through its derivative already (Backward::fold).
  bool is_folded() const { return folded_; }
  ShortList<Edge, 3>& inputs() { return inputs_; }
  ShortList<Output, 1>& outputs() { return outputs_; }

  void retain() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(this);
  }
  static void* operator new(size_t bytes);  // from a free list: nodes come and go with every operation
  static void operator delete(void* node, size_t bytes);

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
  int uses_ = 0;       // gradients still to come in the pass below
  uint64_t pass_ = 0;  // the backward pass that counted them
  uint64_t number_;    // grows with every operation; 0 for leaves
  const char* name_;
  ShortList<Edge, 3> inputs_;
  ShortList<Output, 1> outputs_;
};

/// The node of a variable that nothing recorded made: parameters, and inputs that want a gradient.
class Leaf final : public Node {
 public:
  explicit Leaf(const Tensor& tensor) : Node(LeafTag{}, tensor) {}
  void run(Backward&) override;
  void release_saved() override {}
  void add(Tensor& incoming);  ///< to .grad, and tells who listens

  Tensor grad;
  Variable recorded_grad;  // what backward with create_graph has left
  std::vector<std::pair<int, LeafHook>> on_complete;
};

/// A tensor kept for backward, with the version it had. get() is an Error naming both operations when it was changed
/// since.
class Saved {
 public:
  Saved() = default;
  Saved(const Tensor& tensor)
      : tensor_(tensor), version_(tensor.defined() ? tensor.storage()->version() : 0) {}         // NOLINT
  Saved(const Variable& variable) : Saved(variable.defined() ? variable.tensor() : Tensor()) {}  // NOLINT
  const Tensor& get(const char* reader = "backward") const;
  bool defined() const { return tensor_.defined(); }
  /// Gives the tensor up, so that its reader may be the only holder and reuse its memory.
  Tensor take(const char* reader = "backward");

 private:
  Tensor tensor_;
  uint32_t version_ = 0;
};

/// Whether an operation on these inputs must be recorded.
bool needs_grad(std::initializer_list<const Variable*> inputs);
bool needs_grad(const std::vector<Variable>& inputs);

namespace tape {

/// Wires a node to its inputs and gives back its results. `tensors` are the outputs; undefined inputs are legal.
Variable attach(Ref<Node> node, std::initializer_list<const Variable*> inputs, Tensor output);
std::vector<Variable> attach(Ref<Node> node, const std::vector<Variable>& inputs, std::vector<Tensor> outputs);

template <class Fn> class Function final : public Node {
 public:
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

/// Records one operation: `derivative(Backward&)` is a closure over what it saved. Call only when needs_grad(inputs):
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
/// The same for lists of inputs (cat) and several outputs (checkpoint).
template <class Fn>
std::vector<Variable> record(const char* name, const std::vector<Variable>& inputs, std::vector<Tensor> outputs,
                             Fn derivative) {
  const int count = int(outputs.size());
  return tape::attach(Ref<Node>(new tape::Function<Fn>(name, int(inputs.size()), count, std::move(derivative))), inputs,
                      std::move(outputs));
}

/// Error unless `root` wants a gradient and `gradient`, when given, is like it. For backward() and grad().
void check_start(const char* op, const Variable& root, const Tensor& gradient);

/// Notes that a result shares its input's storage (view operations), so that neither is changed in place.
Variable as_view(const Variable& base, Variable result);

/// For operations that write into a variable: Error for a leaf that wants a gradient and for views; then `fn(tensor)`
/// may change it, and the variable's maker becomes the new node.
void check_in_place(const char* op, const Variable& variable);
/// Makes `variable` the output of what `result` recorded (same storage, changed in place).
void rebase(Variable& variable, const Variable& result);

}  // namespace lockstep
