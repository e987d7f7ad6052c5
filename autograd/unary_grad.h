#pragma once
// The derivative of every unary pointwise operation, and of an activation inside linear().
#include "autograd/tape.h"
#include "tensor/ops.h"

namespace lockstep {

struct UnaryGrad {
  const char* name;
  PointwiseOp op;
  PointwiseArgs args;
  Saved kept;            // the input or the output, whichever op's derivative reads; undefined: neither
  bool is_zero = false;  // sign, floor, ...

  /// Whether the product that makes its gradient can go on with it (Backward::fold).
  bool folds() const { return kept.defined(); }
  void operator()(Backward& back) {
    if (is_zero) return back.give(0, zeros_like(back.grad()));
    if (op == PointwiseOp::add_scalar) return back.give(0, std::move(back.grad()));
    back.give(0, pointwise_grad(op, PointwisePart::grad0, args, back.grad(), kept.get(name), {}));
  }
};

}  // namespace lockstep
