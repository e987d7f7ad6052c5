#pragma once
// Values that derivatives compute from a gradient, such as its column sums. The kernel that writes the gradient can
// compute them as well. Example: a norm's backward writes the gradient of residual + y. If y comes from a linear layer,
// its bias needs the gradient's column sums. If y = dropout(x), x needs the gradient times the dropout's derivative.
// The kernel has the numbers for both.
#include <memory>
#include <utility>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "tensor/random.h"

namespace lockstep {

/// A request for a value computed from the gradient at a node's output (Node::Output), and later the value itself.
struct GradWish {
  /// Above 0, a dropout's probability: gradient times dropout's derivative is wanted. 0: column_sums() of the gradient.
  double p = 0;
  PhiloxKey key = {};
  /// A wish for the gradient of the dropout's input; may be null.
  std::shared_ptr<GradWish> next = {};

  /// Keeps `made`, the wanted value of `grad`, for take().
  void set(const Tensor& grad, Tensor made) {
    grad_ = grad, version_ = grad.storage()->version();
    value_ = std::move(made);
  }
  /// Returns the value if `grad` is the tensor given to set() and has not changed since, else undefined. Forgets both.
  Tensor take(const Tensor& grad) {
    const Tensor of = std::exchange(grad_, {});
    Tensor value = std::exchange(value_, {});
    const bool same = of.defined() && of.raw_data() == grad.raw_data() && of.shape() == grad.shape() &&
                      grad.is_contiguous() && grad.storage()->version() == version_;
    return same ? value : Tensor();
  }

 private:
  Tensor grad_, value_;
  uint32_t version_ = 0;
};

/// The wish for the gradient of x; null if there is none.
inline std::shared_ptr<GradWish> wish_of(const Variable& x) {
  return x.requires_grad() ? x.impl()->node->outputs()[x.impl()->output].wish : nullptr;
}
/// Attaches `wish` to `result`, the output of a new node, and returns `result`.
inline Variable with_wish(Variable result, std::shared_ptr<GradWish> wish) {
  result.impl()->node->outputs()[result.impl()->output].wish = std::move(wish);
  return result;
}

/// Records `out`, which is add_dropout() of the other arguments (ops_dropout.cpp).
Variable record_add_dropout(const Variable& residual, const Variable& x, Tensor out, double p, const PhiloxKey& key,
                            const PartOf& part);

}  // namespace lockstep
