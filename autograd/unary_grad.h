#pragma once
// The derivative of every unary pointwise operation, and of an activation inside linear().
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "tensor/functors.h"
#include "tensor/ops.h"

namespace lockstep {

/// The derivative of one unary operation.
struct UnaryGrad {
  const char* name;
  PointwiseOp op;
  PointwiseArgs args;
  Saved kept;  // the input or the output, whichever the derivative reads; undefined if neither
  functor::Reads reads = functor::Reads::none;

  /// True if the matrix product that computes the incoming gradient may apply this derivative as well (Backward::fold).
  bool folds() const { return kept.defined(); }
  /// Computes the gradient of the operation's input and passes it to `back`.
  template <class Back> void operator()(Back& back) {
    if (reads == functor::Reads::zero) return back.give(0, zeros_like(bare(back.grad())));
    if (op == PointwiseOp::add_scalar || op == PointwiseOp::sub_scalar) return back.give(0, std::move(back.grad()));
    const auto& read = reads == functor::Reads::output ? back.output(kept) : back.input(0, kept);
    back.give(0, pointwise_grad(op, PointwisePart::grad0, args, back.grad(), read, {}));
  }
};

}  // namespace lockstep
