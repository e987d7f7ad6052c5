#pragma once
// For closures that compute an operation's derivative from tensors (Backward) or variables (RecordedBackward).
#include "autograd/ops.h"
#include "autograd/symbol.h"
#include "autograd/tape.h"

namespace lockstep {

/// Returns x itself if it is a Tensor, and its tensor if it is a Variable.
inline const Tensor& bare(const Tensor& x) { return x; }
inline const Tensor& bare(const Variable& x) { return x.tensor(); }  ///< the tensor of x

/// Returns the result `out` of an operation as a Variable. Records the operation if an input requires grad.
template <class Fn>
Variable on_tape(const char* name, std::initializer_list<const Variable*> inputs, Tensor out, Fn derivative) {
  if (!needs_grad(inputs)) return out;
  return record(name, inputs, std::move(out), std::move(derivative));
}

/// Sums x to `shape`, which must broadcast to the shape of x.
Variable sum_to(const Variable& x, const Shape& shape);

/// The tensor of x, moved out of x if x is the variable's only handle, so that the tensor has no second handle.
inline Tensor taken(Variable x) { return x.impl()->is_shared() ? x.tensor() : std::move(x.impl()->tensor); }
/// Adds `grad`, computed with Variables, to the gradient of input i. Only a recorded pass keeps the graph of `grad`.
inline void give_value(const Backward& back, int i, Variable grad) { back.give(i, taken(std::move(grad))); }
inline void give_value(const RecordedBackward& back, int i, Variable grad) { back.give(i, std::move(grad)); }

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
