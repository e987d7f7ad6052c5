#pragma once
// Variable: a tensor on the tape. A Tensor converts implicitly to a Variable that does not require grad, so data can be
// passed to a model directly. Variable::tensor() converts back.
#include <atomic>
#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

class Node;

/// Receives the gradient of a variable. Returns a replacement, or an undefined tensor to leave the gradient unchanged.
using GradHook = std::function<Tensor(const Tensor& grad)>;
/// Called when the gradient of a leaf is complete in a backward pass; `grad` is the leaf's .grad. DDP and ZeRO use it.
using LeafHook = std::function<void(Tensor& grad)>;

/// Options of Variable::backward().
struct BackwardOptions {
  /// The incoming gradient, d loss / d this variable, with the variable's shape and dtype. May be undefined, which
  /// stands for 1, if the variable is real and has one element.
  Tensor gradient = {};
  /// Keeps the graph for another backward pass instead of freeing it node by node.
  bool retain_graph = false;
  /// Records the derivatives too, so that Variable::recorded_grad() can be differentiated. Keeps the graph.
  bool create_graph = false;
};

/// Handle of a tensor and of the node that computed it. Copies are cheap and share tensor, gradient and hooks.
class Variable {
 public:
  Variable() = default;
  /// A variable that does not require grad.
  Variable(Tensor tensor);  // NOLINT: implicit on purpose
  /// A leaf; an Error if `requires_grad` is set and the dtype is neither floating nor complex.
  Variable(Tensor tensor, bool requires_grad);

  bool defined() const { return bool(impl_); }                    ///< False for a default-constructed variable.
  const Tensor& tensor() const;                                   ///< The value; Error when undefined.
  const Shape& shape() const { return tensor().shape(); }         ///< Sizes of the dims.
  int64_t size(int64_t dim) const { return tensor().size(dim); }  ///< Size of `dim`; negative dims count from the end.
  int dim() const { return tensor().dim(); }                      ///< Number of dims.
  int64_t numel() const { return tensor().numel(); }              ///< Number of elements.
  DType dtype() const { return tensor().dtype(); }                ///< Element type.
  Device device() const { return tensor().device(); }             ///< Device of the value.
  /// The value of a variable of one element.
  template <class T = double> T item() const { return tensor().item<T>(); }
  /// Replaces the tensor of this leaf (Module::to, ZeRO); every handle sees the new one. Drops .grad when shape, dtype
  /// or device change. Error unless this is a leaf.
  void set_tensor(Tensor tensor);

  bool requires_grad() const;  ///< True when backward passes compute this variable's gradient.
  /// Sets requires_grad(). Error for a non-leaf. If `wanted`, also Error for a dtype neither floating nor complex.
  Variable& requires_grad_(bool wanted = true);
  bool is_leaf() const;  ///< True unless a recorded operation computed it.
  /// A variable that shares the tensor but does not require grad.
  Variable detach() const;

  /// The gradient accumulated so far; undefined before backward. Error for a non-leaf without retain_grad().
  Tensor& grad() const;
  /// grad(), for code that reads it, such as optimizers. Error, which names `op`, if the program assigned a .grad whose
  /// shape, dtype or device differ from this variable's.
  const Tensor& checked_grad(const char* op) const;
  /// Makes backward keep the gradient of a non-leaf in grad(). Error unless the variable requires grad.
  void retain_grad();
  /// Drops the gradient and the recorded gradient; the memory returns to the allocator.
  void clear_grad();

  /// Runs the backward pass from this variable, and adds the gradient of every leaf to the leaf's .grad. `gradient`:
  /// see BackwardOptions. Frees the graph on the way unless `retain_graph` is set.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;
  void backward(const BackwardOptions& options) const;
  /// The .grad of backward({.create_graph = true}), on the tape, so it can be differentiated again. This leaf and the
  /// recorded gradient hold references to each other; clear_grad() breaks the cycle.
  Variable recorded_grad() const;

  /// Calls `hook` once per backward pass, with the complete gradient of this variable. Returns an id for remove_hook().
  int on_grad(GradHook hook);
  /// Calls `hook` when hooks of on_grad() are called, but without the gradient. So the gradient need not be in memory:
  /// the kernel that computes it may apply the next derivative too (Backward::fold). Returns an id for remove_hook().
  int before_backward(std::function<void()> hook);
  /// Calls `hook` when the .grad of this leaf is complete in a pass. Returns an id for remove_hook().
  int on_grad_complete(LeafHook hook);
  /// Removes the hook for which one of the three functions above returned `id`. Ignores an unknown id.
  void remove_hook(int id);

  // Differentiable versions of Tensor's members of the same names.
  /// Shows the same elements in another shape, without a copy; Error if the strides do not allow it.
  Variable view(const Shape& shape) const;
  Variable reshape(const Shape& shape) const;                    ///< view(), or a copy where that is impossible.
  Variable flatten(int64_t first = 0, int64_t last = -1) const;  ///< Joins dims first to last.
  Variable permute(const Dims& dims) const;                      ///< Reorders the dims.
  Variable transpose(int64_t a, int64_t b) const;                ///< Swaps two dims.
  Variable t() const;                                            ///< Transposed matrix.
  /// Elements start, start + step, ... of dim `dim`, below `end`.
  Variable slice(int64_t dim, int64_t start, int64_t end = end_of_dim, int64_t step = 1) const;
  Variable narrow(int64_t dim, int64_t start, int64_t length) const;  ///< `length` elements of `dim` from `start` on.
  Variable select(int64_t dim, int64_t index) const;                  ///< One index of `dim`; drops the dim.
  Variable operator[](int64_t index) const { return select(0, index); }  ///< Row `index`.
  Variable expand(const Shape& shape) const;  ///< Repeats dims of size 1 without a copy; -1 keeps a size.
  Variable squeeze() const;                   ///< Drops all dims of size 1.
  Variable squeeze(int64_t dim) const;        ///< Drops `dim` if its size is 1.
  Variable unsqueeze(int64_t dim) const;      ///< Inserts a dim of size 1 at `dim`.
  /// Elements with index[dim2] = index[dim1] + offset. The last dim of the result runs along this diagonal.
  Variable diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1) const;
  /// Splits `dim` into at most `chunks` equal parts; the last one may be smaller.
  std::vector<Variable> chunk(int64_t chunks, int64_t dim = 0) const;
  /// Splits `dim` into parts of `size`; the last one may be smaller.
  std::vector<Variable> split(int64_t size, int64_t dim = 0) const;
  /// Splits `dim` into parts of the given sizes.
  std::vector<Variable> split(const std::vector<int64_t>& sizes, int64_t dim = 0) const;
  Variable contiguous() const;       ///< Itself when row-major, else a row-major copy.
  Variable clone() const;            ///< A copy on the tape.
  Variable to(DType dtype) const;    ///< Converts; an integer result is off the tape.
  Variable to(Device device) const;  ///< Copies to a device; itself when already there.
  Variable to(Device device, DType dtype) const { return to(dtype).to(device); }

  struct Impl;
  const Ref<Impl>& impl() const { return impl_; }  ///< Identity of the variable, shared by all handles.

 private:
  friend class Tape;
  Ref<Impl> impl_;
};

/// Base class that gives T the reference count that Ref uses. The memory comes from free lists (record.cpp), as every
/// operation makes such objects.
template <class T> class Counted {
 public:
  Counted() = default;
  Counted(const Counted&) = delete;
  void retain() { refs_.fetch_add(1, std::memory_order_relaxed); }  ///< Adds a reference.
  /// Drops a reference; the last one destroys the object.
  void release() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) T::destroy(static_cast<T*>(this));
  }
  bool is_shared() const { return refs_.load(std::memory_order_acquire) > 1; }  ///< True for several references.
  static void* operator new(size_t bytes);                                      ///< takes a block from a free list
  static void operator delete(void* object, size_t bytes);                      ///< puts the block back

 private:
  std::atomic<int> refs_{0};
};

/// The shared state of all handles of one variable. Used by the tape (autograd/tape.h).
struct Variable::Impl final : Counted<Variable::Impl> {
  /// State of a variable that does not require grad.
  explicit Impl(Tensor t);
  ~Impl();
  static void destroy(Impl* impl) { delete impl; }  ///< for Counted
  Tensor tensor;
  /// The node that computed the tensor, or a Leaf; empty if a gradient was never required.
  Ref<Node> node;
  int output = 0;  // Index among the node's outputs.
  bool requires_grad = false;
  bool is_aliased = false;  // true: shares storage with another variable of the tape
  /// Gradient of a non-leaf after retain_grad().
  std::shared_ptr<Tensor> retained_grad;
};

/// Prints the tensor, then "requires grad" or the name of the operation that computed it.
std::ostream& operator<<(std::ostream& out, const Variable& variable);

/// While a NoGrad lives, this thread records no operations. (With `enabled` = true it records: see EnableGrad.)
class NoGrad {
 public:
  /// Turns recording in this thread on or off. The destructor restores the previous state.
  explicit NoGrad(bool enabled = false) : previous_(set(enabled)) {}
  ~NoGrad() { set(previous_); }
  NoGrad(const NoGrad&) = delete;
  static bool grad_enabled();  ///< True if this thread records.

 private:
  static bool set(bool enabled);
  bool previous_;
};
/// Re-enables recording inside a NoGrad scope.
class EnableGrad : NoGrad {
 public:
  /// Records until the end of the scope.
  EnableGrad() : NoGrad(true) {}
};

/// While an AnomalyMode lives, every recorded result and every gradient of this thread is searched for NaN. An Error
/// names the first operation that produces a NaN. Slow; for debugging.
class AnomalyMode {
 public:
  /// Begins a scope; scopes nest.
  AnomalyMode();
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  static bool enabled();  ///< True inside a scope.
  /// Error when `tensor`, the `what` ("result" or "gradient") of operation `name`, contains a NaN.
  static void check(const Tensor& tensor, const char* what, const char* name);
};

/// Options of grad().
struct GradOptions {
  /// The incoming gradient of each output, with the output's shape. For a real output of one element it may be
  /// undefined, which stands for 1. An empty list means that all are undefined.
  std::vector<Variable> grad_outputs = {};
  /// Keeps the graph for another pass.
  bool retain_graph = false;
  /// Records the gradients on the tape, so they can be differentiated again. Keeps the graph.
  bool create_graph = false;
  /// An input that no output depends on gets an undefined variable instead of an Error.
  bool allow_unused = false;
};

/// Gradients of the sum over `outputs` of output * grad_output with respect to `inputs`. Changes no .grad.
std::vector<Variable> grad(const std::vector<Variable>& outputs, const std::vector<Variable>& inputs,
                           const GradOptions& options = {});
inline std::vector<Variable> grad(const Variable& output, const std::vector<Variable>& inputs,
                                  const GradOptions& options = {}) {
  return grad(std::vector<Variable>{output}, inputs, options);
}

/// Calls `callback` once at the end of the backward pass that this thread is running, e.g. DDP waits for its buckets
/// there. If an Error ends the pass, or `callback` throws, calls `abandoned` instead. Error when no pass runs.
void after_backward(std::function<void()> callback, std::function<void()> abandoned = {});

}  // namespace lockstep
