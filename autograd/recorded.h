#pragma once
// Lets one closure compute an operation's derivative either from tensors or, under create_graph, from variables. The
// derivative is then itself recorded on the tape.
#include <type_traits>

#include "autograd/ops.h"
#include "autograd/symbol.h"
#include "autograd/tape.h"

namespace lockstep {

class RecordedPass;
/// Stands in for Backward if the derivative itself is recorded (create_graph): all values are variables on the tape. A
/// closure that takes `auto& back` serves both classes. A closure that takes Backward& has no second derivative: a pass
/// with create_graph then throws an Error that names the operation.
class RecordedBackward {
 public:
  /// Type of gradients. (Class Backward has Tensor here.)
  using Value = Variable;
  static constexpr bool is_recorded = true;
  /// `grads` are the gradients of the node's outputs.
  RecordedBackward(RecordedPass& pass, const Ref<Node>& node, std::vector<Variable>& grads)
      : pass_(pass), node_(node), grads_(grads) {}
  bool retains() const { return true; }                          ///< The graph is always kept.
  Variable& grad(int i = 0) const { return grads_[size_t(i)]; }  ///< Gradient of output i; undefined if none arrived.
  bool needs(int i) const;                               ///< True when a wanted gradient depends on that of input i.
  void give(int i, const Variable& grad) const;          ///< Adds a gradient of input i, summed to the input's shape.
  Variable input(int i, const Saved& saved) const;       ///< The saved input i, on the tape.
  Variable output(const Saved& saved, int i = 0) const;  ///< The saved output i, on the tape.
  /// For kernels whose derivative cannot be recorded. `composed` computes the same result from operations that can be.
  /// through() differentiates `composed` at the inputs in `saved` and adds the results to these inputs' gradients.
  void through(const std::vector<const Saved*>& saved,
               const std::function<Variable(const std::vector<Variable>&)>& composed) const;
  /// through() for an operation with several results.
  void through_all(const std::vector<const Saved*>& saved,
                   const std::function<std::vector<Variable>(const std::vector<Variable>&)>& composed) const;

 private:
  RecordedPass& pass_;
  const Ref<Node>& node_;
  std::vector<Variable>& grads_;
};

/// The type of gradients in a closure: Tensor if its `back` is a Backward, Variable if it is a RecordedBackward.
template <class Back> using Value = typename std::remove_reference_t<Back>::Value;

/// True when `back` is a RecordedBackward.
template <class Back> inline constexpr bool is_recorded = std::remove_reference_t<Back>::is_recorded;

/// Returns x itself if it is a Tensor, and its tensor if it is a Variable.
inline const Tensor& bare(const Tensor& x) { return x; }
inline const Tensor& bare(const Variable& x) { return x.tensor(); }  ///< the tensor of x

/// Returns the result `out` of an operation as a Variable. Records the operation if an input requires grad.
template <class Fn>
Variable on_tape(const char* name, std::initializer_list<const Variable*> inputs, Tensor out, Fn derivative) {
  if (!needs_grad(inputs)) return out;
  return record(name, inputs, std::move(out), std::move(derivative));
}

/// Adds `grad`, computed with Variables, to the gradient of input i. Only a recorded pass keeps the graph of `grad`.
inline void give_value(const Backward& back, int i, const Variable& grad) { back.give(i, grad.tensor()); }
inline void give_value(const RecordedBackward& back, int i, const Variable& grad) { back.give(i, grad); }

/// True when x may be overwritten: a contiguous tensor that nobody else holds.
inline bool is_free(const Tensor& x) { return x.is_exclusive() && x.is_contiguous(); }
inline bool is_free(const Variable&) { return false; }

// If the first operand is a Tensor, these functions overwrite it: the caller must own it. They overwrite no Variable.
inline Tensor mul_over(const Tensor& x, const Tensor& y) { return mul_(x, y); }
inline Variable mul_over(const Variable& x, const Variable& y) { return mul(x, y); }
inline Tensor scale_over(const Tensor& x, Scalar factor) { return mul_scalar_(x, factor); }     ///< x * factor
inline Variable scale_over(const Variable& x, Scalar factor) { return mul_scalar(x, factor); }  ///< x * factor
/// -x, in place if nobody else holds x.
inline Tensor neg_over(const Tensor& x) { return is_free(x) ? neg_(x) : neg(x); }
inline Variable neg_over(const Variable& x) { return neg(x); }  ///< -x
inline Tensor exp_over(const Tensor& x) { return exp_(x); }     ///< e^x
inline Variable exp_over(const Variable& x) { return exp(x); }  ///< e^x
/// masked_fill(x, mask, value). Overwrites x if x is a Tensor.
inline Tensor fill_over(const Tensor& x, const Tensor& mask, Scalar value) { return masked_fill_(x, mask, value); }
inline Variable fill_over(const Variable& x, const Tensor& mask, Scalar value) { return masked_fill(x, mask, value); }

}  // namespace lockstep
