#pragma once
// What derivatives share that are written once for tensors and for variables (RecordedBackward).
#include <type_traits>

#include "autograd/ops.h"
#include "autograd/symbol.h"
#include "autograd/tape.h"

namespace lockstep {

class RecordedPass;
/// Backward when the derivative is to be recorded (create_graph): all are variables on the tape. A closure that takes
/// `auto& back` is for both; one that takes Backward& has no second derivative, and says so by its operation's name.
class RecordedBackward {
 public:
  using Value = Variable;
  static constexpr bool is_recorded = true;
  RecordedBackward(RecordedPass& pass, const Ref<Node>& node, std::vector<Variable>& grads)
      : pass_(pass), node_(node), grads_(grads) {}
  bool retains() const { return true; }
  Variable& grad(int i = 0) const { return grads_[size_t(i)]; }
  bool needs(int i) const;
  void give(int i, const Variable& grad) const;
  Variable input(int i, const Saved& saved) const;
  Variable output(const Saved& saved, int i = 0) const;
  /// For kernels whose derivative has none: `composed` is what the operation computes, out of others, of the inputs
  /// that `saved` are; gives their gradients.
  void through(const std::vector<const Saved*>& saved,
               const std::function<Variable(const std::vector<Variable>&)>& composed) const;
  /// The same of an operation with several results.
  void through_all(const std::vector<const Saved*>& saved,
                   const std::function<std::vector<Variable>(const std::vector<Variable>&)>& composed) const;

 private:
  RecordedPass& pass_;
  const Ref<Node>& node_;
  std::vector<Variable>& grads_;
};

/// Tensor or Variable, by what a closure's `back` is.
template <class Back> using Value = typename std::remove_reference_t<Back>::Value;

template <class Back> inline constexpr bool is_recorded = std::remove_reference_t<Back>::is_recorded;

inline const Tensor& bare(const Tensor& x) { return x; }
inline const Tensor& bare(const Variable& x) { return x.tensor(); }

/// The result of an operation, recorded where that is wanted.
template <class Fn>
Variable on_tape(const char* name, std::initializer_list<const Variable*> inputs, Tensor out, Fn derivative) {
  if (!needs_grad(inputs)) return out;
  return record(name, inputs, std::move(out), std::move(derivative));
}

/// Gives what was computed with variables: in a plain pass they are not on the tape.
inline void give_value(const Backward& back, int i, const Variable& grad) { back.give(i, grad.tensor()); }
inline void give_value(const RecordedBackward& back, int i, const Variable& grad) { back.give(i, grad); }

/// Whether x may be written over: nobody else holds it.
inline bool is_free(const Tensor& x) { return x.is_exclusive() && x.is_contiguous(); }
inline bool is_free(const Variable&) { return false; }

// Operations that write over their first operand, which is their caller's own; of variables, a new one.
inline Tensor mul_over(const Tensor& x, const Tensor& y) { return mul_(x, y); }
inline Variable mul_over(const Variable& x, const Variable& y) { return mul(x, y); }
inline Tensor scale_over(const Tensor& x, Scalar factor) { return mul_scalar_(x, factor); }
inline Variable scale_over(const Variable& x, Scalar factor) { return mul_scalar(x, factor); }
inline Tensor neg_over(const Tensor& x) { return is_free(x) ? neg_(x) : neg(x); }
inline Variable neg_over(const Variable& x) { return neg(x); }
inline Tensor exp_over(const Tensor& x) { return exp_(x); }
inline Variable exp_over(const Variable& x) { return exp(x); }
inline Tensor fill_over(const Tensor& x, const Tensor& mask, Scalar value) { return masked_fill_(x, mask, value); }
inline Variable fill_over(const Variable& x, const Tensor& mask, Scalar value) { return masked_fill(x, mask, value); }

}  // namespace lockstep
