#pragma once
// The tape. A node is one recorded operation: it holds what its derivative needs and points to the nodes that computed
// its inputs. A result holds its node, so dropping the loss frees the graph, and several graphs can exist at once.
//
//      x ──┐                             backward() runs the reachable nodes by descending number, each
//      w ──┴─ matmul#1 ─ relu#2 ─ sum#3  once its gradient is complete, and frees it at once. A leaf (x, w)
//   leaves                        loss   is a node too: its derivative adds the gradient to .grad.
//
// Everything runs in loops, never by recursion: chains of a million operations can be differentiated and freed.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/backward.h"

namespace lockstep {

/// The node output that an input came from. Empty when the input requires no gradient.
struct Edge {
  Ref<Node> node;
  int output = 0;
};

/// A list of fixed length. Up to N elements are stored inside the object, longer lists on the heap.
template <class T, int N> class ShortList {
 public:
  explicit ShortList(int size = 0) : size_(size), more_(size > N ? new T[size_t(size)] : nullptr) {}
  int size() const { return size_; }
  T& operator[](int i) { return begin()[i]; }  ///< no check of the range
  T* begin() { return more_ ? more_.get() : first_; }
  T* end() { return begin() + size_; }

 private:
  int size_;
  T first_[N];
  std::unique_ptr<T[]> more_;
};

/// One recorded operation, or a leaf.
class Node : public Counted<Node> {
 public:
  struct Grad {  ///< a gradient that a pass accumulates
    Tensor plain;
    Variable recorded;  // in a recorded pass: accumulated in place of `plain`
  };
  struct Output {  ///< one result of the operation
    Shape shape;
    DType dtype = f32;
    Grad grad;                              // of the running backward pass
    std::shared_ptr<struct GradWish> wish;  // what the kernel that writes `grad` may compute too; often null
    struct Hook {                           ///< registered by on_grad() or before_backward()
      int id;
      GradHook call;
      bool looks = true;  // true: the hook reads the gradient (on_grad()); false: it does not (before_backward())
    };
    std::unique_ptr<std::vector<Hook>> hooks;
    void add_hook(Hook hook);  ///< registers it behind the others
    void run_hooks();          ///< lets each hook see and replace grad.plain
  };

  Node(const char* name, int inputs, int outputs);  ///< assigns the next number()
  virtual ~Node() = default;
  static void destroy(Node* node);  ///< for Counted

  virtual void run(Backward& backward) = 0;      ///< computes the gradients of the inputs
  virtual void run(RecordedBackward& backward);  ///< computes these gradients on the tape; Error if not supported
  virtual void release_saved() = 0;              ///< frees the saved tensors
  /// The derivative of a unary operation, for a consumer that fuses it into its own kernel (Backward::fold); or null.
  virtual const UnaryGrad* unary() const { return nullptr; }

  const char* name() const { return name_; }     ///< name of the operation
  uint64_t number() const { return number_; }    ///< order of recording; 0 for leaves
  bool is_leaf() const { return number_ == 0; }  ///< true for a Leaf
  /// True during a pass once the consumer has applied this node's derivative (Backward::fold).
  bool is_folded() const { return visit_.folded; }
  ShortList<Edge, 3>& inputs() { return inputs_; }      ///< the outputs that are this node's inputs
  ShortList<Output, 1>& outputs() { return outputs_; }  ///< shapes, gradients and hooks of the results

 protected:
  struct LeafTag {};
  Node(LeafTag, const Tensor& tensor);

 private:
  friend class Pass;
  template <class V> friend class BackwardOf;

  struct Visit {
    uint64_t pass = 0;  // the pass that last visited this node
    int uses = 0;       // gradients still to arrive in this pass
    bool folded = false;
    bool leads = true;  // false: no gradient that this pass must return depends on this node's
  };
  bool released_ = false;
  Visit visit_;
  Node* next_dying_ = nullptr;
  uint64_t number_;
  const char* name_;
  ShortList<Edge, 3> inputs_;
  ShortList<Output, 1> outputs_;
};

/// The node of a variable that no recorded operation computed: a parameter, or an input that requires grad.
class Leaf final : public Node {
 public:
  explicit Leaf(const Tensor& tensor) : Node(LeafTag{}, tensor) {}  ///< records the tensor's shape and dtype
  void run(Backward& backward) override;                            ///< adds to .grad and calls on_complete
  void run(RecordedBackward& backward) override;                    ///< adds to recorded_grad, too
  void release_saved() override {}

  Tensor grad;
  Variable recorded_grad;  // gradient from a backward with create_graph
  std::vector<std::pair<int, LeafHook>> on_complete;

 private:
  void add(Tensor incoming);
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

using GradAt = std::pair<Edge, Variable>;                                              ///< a gradient of a node output
inline Edge edge_of(const Variable& x) { return {x.impl()->node, x.impl()->output}; }  ///< the edge to x
/// A variable with the value `tensor` for output `output` of `node`; does not require grad if `node` is null.
inline Variable variable_at(const Ref<Node>& node, int output, Tensor tensor) {
  Variable result(std::move(tensor));
  Variable::Impl& impl = *result.impl();
  impl.requires_grad = bool(node), impl.node = node, impl.output = output;
  return result;
}
/// A variable of one element. A backward pass from it starts at every edge in `list`, with that edge's gradient.
Variable join(std::vector<GradAt> list);
/// Runs the pass `op` from `start`; a recorded one if `records` is set. Returns the gradients of `wanted`, undefined
/// where none arrived. Without `wanted` it adds the gradients of leaves to their .grad.
std::vector<Variable> run_pass(const char* op, GradAt start, const std::vector<Edge>* wanted, bool retains,
                               bool records);
bool in_recorded_pass();  ///< true while this thread runs a recorded pass
uint64_t next_number();   ///< takes the next number in the order of recording
/// The list to which this thread's operations add each variable that they read and that requires grad, once; null if no
/// list is kept. Checkpoints find a function's parameters with it. While recording is on, it gets leaves only; while it
/// is off, also results that were recorded before. (A result computed while recording is off does not require grad.)
std::vector<Variable>*& read_list();

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

/// Marks `result` as a view that shares the storage of `base`, so that neither may be changed in place. Returns result.
Variable as_view(const Variable& base, Variable result);
/// Error if `variable` must not be changed in place: a leaf that requires grad, or a variable that has or is a view.
void check_in_place(const char* op, const Variable& variable);
/// Makes `variable` the output of the operation recorded in `result` (same storage, changed in place).
void rebase(Variable& variable, const Variable& result);

}  // namespace lockstep
