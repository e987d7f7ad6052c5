// Derivatives of matrix products. Transposes are views, which the products read without a copy.
#include "autograd/autocast.h"
#include "autograd/grad_wish.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/unary_grad.h"
#include "tensor/flops.h"
#include "tensor/padded.h"
#include "tensor/stored_matrix.h"

namespace lockstep {
namespace {

/// Gradients of a (left) and b (right) in a b, for matrices and batches. `single`: b was one matrix for a whole batch,
/// so the gradient of b is summed over the batch, by one product.
template <class T> T left_grad(const T& g, const T& b) { return matmul(g, b.transpose(-2, -1)); }
template <class T> T right_grad(const T& g, const T& a, bool single) {
  if (single && a.dim() > 2 && a.dim() == g.dim()) return matmul(as_matrix(a).t(), as_matrix(g));
  return matmul(a.transpose(-2, -1), g);
}

/// Adds g w, viewed as `shape`, to the gradient of input i: in place if another use of the input has already
/// contributed to it.
void give_product(const Backward& back, int i, const Tensor& g, const Tensor& w, const Shape& shape) {
  const Tensor sum = back.partial(i);
  if (!sum.defined() || stored_in(w)) return back.give(i, matmul(g, w).view(shape));
  MacCounter::add(g.numel() * w.size(1));
  matmul_into(as_matrix(sum), g, w, true);
}

}  // namespace

Variable matmul(const Variable& a, const Variable& b) {
  if (Autocast::enabled()) {
    const Variable low_a = Autocast::low(a), low_b = Autocast::low(b);
    if (low_a.impl() != a.impl() || low_b.impl() != b.impl()) return matmul(low_a, low_b);
  }
  Tensor out = matmul(a.tensor(), b.tensor());
  if (!needs_grad({&a, &b})) return out;
  const Saved kept_a = b.requires_grad() ? Saved(a) : Saved(), kept_b = a.requires_grad() ? Saved(b) : Saved();
  return record("matmul", {&a, &b}, std::move(out),
                [a = kept_a, b = kept_b, rank_a = a.dim(), rank_b = b.dim()](auto& back) {
                  // Vectors become matrices of one row (a) or one column (b), and g gets the dims of size 1 to match.
                  using T = Value<decltype(back)>;
                  T g = back.grad();
                  if (rank_b == 1) g = g.unsqueeze(-1);
                  if (rank_a == 1) g = g.unsqueeze(-2);
                  if (back.needs(0)) {
                    const auto& right = back.input(1, b);
                    const T grad = left_grad<T>(g, rank_b == 1 ? right.unsqueeze(-1) : right);
                    back.give(0, rank_a == 1 ? grad.squeeze(-2) : grad);
                  }
                  if (back.needs(1)) {
                    const auto& left = back.input(0, a);
                    const T grad = right_grad<T>(g, rank_a == 1 ? left.unsqueeze(0) : left, rank_b <= 2);
                    back.give(1, rank_b == 1 ? grad.squeeze(-1) : grad);
                  }
                });
}

Variable addmm(const Variable& c, const Variable& a, const Variable& b, Scalar beta, Scalar alpha) {
  if (Autocast::enabled()) {
    const Variable low_a = Autocast::low(a), low_b = Autocast::low(b), low_c = Autocast::low(c);
    if (low_a.impl() != a.impl() || low_b.impl() != b.impl() || low_c.impl() != c.impl())
      return addmm(low_c, low_a, low_b, beta, alpha);
  }
  Tensor out = addmm(c.tensor(), a.tensor(), b.tensor(), beta, alpha);
  if (!needs_grad({&c, &a, &b})) return out;
  const Saved kept_a = b.requires_grad() ? Saved(a) : Saved(), kept_b = a.requires_grad() ? Saved(b) : Saved();
  return record("addmm", {&c, &a, &b}, std::move(out), [a = kept_a, b = kept_b, beta, alpha](auto& back) {
    using T = Value<decltype(back)>;
    const T& g = back.grad();
    if (back.needs(0)) back.give(0, beta == 1 ? g : mul_scalar(g, beta));
    const auto scaled = [alpha](const T& product) { return alpha == 1 ? product : scale_over(product, alpha); };
    if (back.needs(1)) back.give(1, scaled(left_grad<T>(g, back.input(2, b))));
    if (back.needs(2)) back.give(2, scaled(right_grad<T>(g, back.input(1, a), true)));
  });
}

Variable outer(const Variable& a, const Variable& b) {
  Tensor out = outer(a.tensor(), b.tensor());
  if (!needs_grad({&a, &b})) return out;
  const Saved kept_a = b.requires_grad() ? Saved(a) : Saved(), kept_b = a.requires_grad() ? Saved(b) : Saved();
  return record("outer", {&a, &b}, std::move(out), [a = kept_a, b = kept_b](auto& back) {
    if (back.needs(0)) back.give(0, matmul(back.grad(), back.input(1, b)));
    if (back.needs(1)) back.give(1, matmul(back.grad().t(), back.input(0, a)));
  });
}

namespace {

/// Gives the gradient of the bias. The kernel that made the incoming gradient may have summed its rows already.
void give_bias(const Backward& back, GradWish& wish) {
  Tensor sums = wish.take(back.grad());
  back.give(2, sums.defined() ? std::move(sums) : column_sums(as_matrix<Tensor>(back.grad())));
}
void give_bias(const RecordedBackward& back, GradWish&) { back.give(2, sum(as_matrix<Variable>(back.grad()), {0})); }

/// Gives the gradient of x. If fold() returns the derivative of the unary operation that made x, the product's kernel
/// applies that derivative as well.
void give_input(const Backward& back, const Tensor& g, const Tensor& weight, const Shape& shape) {
  if (const UnaryGrad* const before = back.fold(0))
    back.give(
        0,
        matmul_unary_grad(g, weight, before->op, before->args, as_matrix(before->kept.get(before->name))).view(shape));
  else give_product(back, 0, g, weight, shape);
}
void give_input(const RecordedBackward& back, const Variable& g, const Variable& weight, const Shape& shape) {
  back.give(0, matmul(g, weight).view(shape));
}

/// Records the node of x w^T + bias, plus `residual` if it is defined.
Variable record_linear(const Variable& x, const Variable& w, const Variable& bias, const Variable& residual,
                       Tensor out) {
  const Saved kept_x = w.requires_grad() ? Saved(x) : Saved(), kept_w = x.requires_grad() ? Saved(w) : Saved();
  const auto wish = bias.requires_grad() ? std::make_shared<GradWish>() : nullptr;
  const auto derivative = [x = kept_x, w = kept_w, shape = x.shape(), adds = residual.defined(), wish](auto& back) {
    using T = Value<decltype(back)>;
    if (back.needs(2)) give_bias(back, *wish);
    const T g = as_matrix<T>(back.grad());
    if (adds) back.give(3, back.grad());
    if (back.needs(0)) give_input(back, g, back.input(1, w), shape);
    if (back.needs(1)) back.give(1, matmul(g.t(), as_matrix<T>(back.input(0, x))));
  };
  if (residual.defined())
    return with_wish(record("linear_add", {&x, &w, &bias, &residual}, std::move(out), derivative), wish);
  return with_wish(record("linear", {&x, &w, &bias}, std::move(out), derivative), wish);
}

}  // namespace

Variable linear(const Variable& x, const Variable& w, const Variable& bias, Activation activation) {
  if (Autocast::enabled()) {
    const Variable low_x = Autocast::low(x), low_w = Autocast::low(w), low_bias = Autocast::low(bias);
    if (low_x.impl() != x.impl() || low_w.impl() != w.impl() || low_bias.impl() != bias.impl())
      return linear(low_x, low_w, low_bias, activation);
  }
  const Tensor no_bias;
  const Tensor& b = bias.defined() ? bias.tensor() : no_bias;
  if (!needs_grad({&x, &w, &bias})) return linear(x.tensor(), w.tensor(), b, activation);
  // The derivative of relu reads the output, which the next layer keeps anyway. The derivatives of the other
  // activations read the value before the activation.
  const bool reads_pre = activation != Activation::none && activation != Activation::relu;
  Tensor pre;
  const Tensor out = linear(x.tensor(), w.tensor(), b, activation, reads_pre ? &pre : nullptr),
               &read = reads_pre ? pre : out;
  const Variable product = record_linear(x, w, bias, {}, read);
  if (activation == Activation::none) return product;
  // The activation gets its own node, although one kernel computed product and activation: a backward in two passes
  // (gradients of inputs, then of weights) must apply the activation's derivative only once.
  constexpr PointwiseOp ops[] = {PointwiseOp::count, PointwiseOp::relu, PointwiseOp::gelu_tanh, PointwiseOp::gelu_erf,
                                 PointwiseOp::silu};
  return record(
      "activation", {&product}, out,
      UnaryGrad{"linear", ops[int(activation)], {}, read, reads_pre ? functor::Reads::input : functor::Reads::output});
}

Variable linear_padded(const Variable& x, const Variable& w) {
  if (Autocast::enabled()) {
    const Variable low_x = Autocast::low(x), low_w = Autocast::low(w);
    if (low_x.impl() != x.impl() || low_w.impl() != w.impl()) return linear_padded(low_x, low_w);
  }
  Tensor out = linear_padded(x.tensor(), w.tensor());
  return needs_grad({&x, &w}) ? record_linear(x, w, {}, {}, std::move(out)) : Variable(std::move(out));
}

Variable linear_add(const Variable& residual, const Variable& x, const Variable& w, const Variable& bias) {
  const auto apart = [&] { return add(residual, linear(x, w, bias)); };
  if (Autocast::enabled()) {
    const Variable low_x = Autocast::low(x), low_w = Autocast::low(w), low_bias = Autocast::low(bias);
    if (low_x.impl() != x.impl() || low_w.impl() != w.impl() || low_bias.impl() != bias.impl())
      return linear_add(residual, low_x, low_w, low_bias);
  }
  Shape shape = x.shape();
  if (x.dim() > 0 && w.dim() == 2) shape[x.dim() - 1] = w.size(0);
  if (residual.dtype() != x.dtype() || residual.device() != x.device() || residual.shape() != shape) return apart();
  const Tensor out = linear_add(residual.tensor(), x.tensor(), w.tensor(), bias.defined() ? bias.tensor() : Tensor());
  if (!needs_grad({&residual, &x, &w, &bias})) return out;
  return record_linear(x, w, bias, residual, out);
}

}  // namespace lockstep
