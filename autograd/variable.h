#pragma once
// Variable: a tensor on the tape. A Tensor converts to a Variable that wants no gradient, so data goes into a model as
// it is; .tensor() is the way back.
#include <atomic>
#include <functional>
#include <iosfwd>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

class Node;

/// Sees the gradient of a variable and may return another in its place (or an undefined tensor to leave it).
using GradHook = std::function<Tensor(const Tensor& grad)>;
/// Runs when the gradient of a leaf is complete in a backward pass: .grad holds it. DDP and ZeRO listen here.
using LeafHook = std::function<void(Tensor& grad)>;

struct BackwardOptions {
  Tensor gradient;  // of the variable; of one element it may be left out: 1
  bool retain_graph = false;
  /// Records the derivatives too: Variable::recorded_grad() can then be differentiated. Keeps the graph.
  bool create_graph = false;
};

class Variable {
 public:
  Variable() = default;
  Variable(Tensor tensor);  // NOLINT: implicit on purpose
  Variable(Tensor tensor, bool requires_grad);

  bool defined() const { return bool(impl_); }
  const Tensor& tensor() const;
  const Shape& shape() const { return tensor().shape(); }
  int64_t size(int64_t dim) const { return tensor().size(dim); }
  int dim() const { return tensor().dim(); }
  int64_t numel() const { return tensor().numel(); }
  DType dtype() const { return tensor().dtype(); }
  Device device() const { return tensor().device(); }
  template <class T = double> T item() const { return tensor().item<T>(); }
  /// Puts another tensor under this leaf (Module::to, ZeRO); every handle sees it. Drops .grad when shape or dtype
  /// change.
  void set_tensor(Tensor tensor);

  bool requires_grad() const;
  /// Error unless this is a leaf of floating dtype.
  Variable& requires_grad_(bool wanted = true);
  bool is_leaf() const;
  /// Same bytes, off the tape.
  Variable detach() const;

  /// The gradient collected so far; undefined before backward. Leaves only, unless retain_grad() was called.
  Tensor& grad() const;
  /// The same for who computes with it: an Error of `op` when somebody has put in one of another shape, dtype or device
  /// than this.
  const Tensor& checked_grad(const char* op) const;
  void retain_grad();
  /// Drops the gradient (its memory goes back to the allocator).
  void clear_grad();

  /// Runs the tape back from here: adds d this / d leaf to every leaf's grad. Without `gradient` this must have one
  /// element. The graph is freed as it goes unless retain_graph.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;
  void backward(const BackwardOptions& options) const;
  /// .grad as backward({.create_graph = true}) left it: on the tape, so that it can be differentiated again. It holds
  /// this leaf, which holds it: clear_grad() frees both.
  Variable recorded_grad() const;

  /// Returns an id for remove_hook. Called once a pass, with the whole gradient of this variable.
  int on_grad(GradHook hook);
  /// The same without the gradient, which the operation before may then fold its derivative into.
  int before_backward(std::function<void()> hook);
  int on_grad_complete(LeafHook hook);
  void remove_hook(int id);

  // Views and shapes, as Tensor's, on the tape
  Variable view(const Shape& shape) const;
  Variable reshape(const Shape& shape) const;
  Variable flatten(int64_t first = 0, int64_t last = -1) const;
  Variable permute(const Dims& dims) const;
  Variable transpose(int64_t a, int64_t b) const;
  Variable t() const;
  Variable slice(int64_t dim, int64_t start, int64_t end = end_of_dim, int64_t step = 1) const;
  Variable narrow(int64_t dim, int64_t start, int64_t length) const;
  Variable select(int64_t dim, int64_t index) const;
  Variable operator[](int64_t index) const { return select(0, index); }
  Variable expand(const Shape& shape) const;
  Variable squeeze() const;
  Variable squeeze(int64_t dim) const;
  Variable unsqueeze(int64_t dim) const;
  Variable diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1) const;
  std::vector<Variable> chunk(int64_t chunks, int64_t dim = 0) const;
  std::vector<Variable> split(int64_t size, int64_t dim = 0) const;
  std::vector<Variable> split(const std::vector<int64_t>& sizes, int64_t dim = 0) const;
  Variable contiguous() const;
  Variable clone() const;
  Variable to(DType dtype) const;
  Variable to(Device device) const;

  struct Impl;
  const Ref<Impl>& impl() const { return impl_; }

 private:
  friend class Tape;
  Ref<Impl> impl_;
};

/// What a Variable points at. For the tape (autograd/tape.h).
struct Variable::Impl {
  explicit Impl(Tensor t);
  ~Impl();
  Tensor tensor;
  Ref<Node> node;  // its maker, or a Leaf; empty when no gradient was ever wanted
  int output = 0;  // which of the maker's outputs
  bool requires_grad = false;
  bool is_aliased = false;  // shares storage with another variable of the tape
  std::shared_ptr<Tensor> retained_grad;

  void retain() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  bool is_shared() const { return refs_.load(std::memory_order_acquire) > 1; }
  static void* operator new(size_t bytes);
  static void operator delete(void* impl, size_t bytes);

 private:
  std::atomic<int> refs_{0};
};

std::ostream& operator<<(std::ostream& out, const Variable& variable);

/// While it lives, operations of this thread are not recorded.
class NoGrad {
 public:
  explicit NoGrad(bool enabled = false) : previous_(set(enabled)) {}
  ~NoGrad() { set(previous_); }
  NoGrad(const NoGrad&) = delete;
  static bool grad_enabled();

 private:
  static bool set(bool enabled);
  bool previous_;
};
/// Records inside a NoGrad scope.
class EnableGrad : NoGrad {
 public:
  EnableGrad() : NoGrad(true) {}
};

/// While it lives, every recorded operation and every gradient is searched for NaN, and the first operation to make one
/// is named in an Error.
class AnomalyMode {
 public:
  AnomalyMode();
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  static bool enabled();
  /// Error when this `what` of operation `name` holds a NaN.
  static void check(const Tensor& tensor, const char* what, const char* name);
};

struct GradOptions {
  std::vector<Variable> grad_outputs;  // one for each output, like it; an output of one element may go without: 1
  bool retain_graph = false;
  bool create_graph = false;  // the gradients are on the tape, and can be differentiated again; keeps the graph
  bool allow_unused = false;  // an input that no output depends on gives an undefined variable instead of an Error
};

/// Gradients of the sum of `outputs` (each times its grad_output) with respect to `inputs`; no .grad is touched.
std::vector<Variable> grad(const std::vector<Variable>& outputs, const std::vector<Variable>& inputs,
                           const GradOptions& options = {});
inline std::vector<Variable> grad(const Variable& output, const std::vector<Variable>& inputs,
                                  const GradOptions& options = {}) {
  return grad(std::vector<Variable>{output}, inputs, options);
}

/// Runs once, at the end of the backward pass that is running in this thread (DDP waits for its buckets there).
void after_backward(std::function<void()> callback);

}  // namespace lockstep
