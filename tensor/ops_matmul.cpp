// Matrix products: matmul with NumPy's rules, addmm, outer and linear.
#include <atomic>

#include "tensor/flops.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"
#include "tensor/padded.h"
#include "tensor/stored_matrix.h"

namespace lockstep {
namespace {

/// True if the last two dims are a matrix as kernels take it: one unit stride, and no overlapping rows (or columns).
bool are_matrices(const Tensor& x) {
  const int r = x.dim();
  const int64_t m = x.shape()[r - 2], n = x.shape()[r - 1], row = x.strides()[r - 2], col = x.strides()[r - 1];
  return (col == 1 && (m <= 1 || row >= n)) || (row == 1 && (n <= 1 || col >= m));
}

Tensor as_matrices(const Tensor& x) { return are_matrices(x) ? x : x.clone(); }

/// True if x (..., M, K) can be viewed as one tall matrix: its leading dims and M become one dim of rows.
bool rows_fold(const Tensor& x) {
  for (int d = 0; d + 2 < x.dim(); ++d)
    if (x.strides()[d] != x.strides()[d + 1] * x.shape()[d + 1]) return false;
  return true;
}

void run(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias, const MatmulArgs& args, Tensor& pre,
         Tensor& out) {
  MacCounter::add(out.numel() * a.size(-1));
  if (are_matrices(a) && are_matrices(b)) kernels::matmul(a.device(), a, b, c, bias, args, pre, out);
  else kernels::matmul(a.device(), as_matrices(a), as_matrices(b), c, bias, args, pre, out);
}

Tensor run(const Tensor& a, const Tensor& b, const Shape& shape) {
  Tensor none, out = empty(shape, {.dtype = a.dtype(), .device = a.device()});
  run(a, b, none, none, {}, none, out);
  return out;
}

void check_linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  check_product("linear", x, w);
  LOCKSTEP_CHECK(w.dim() == 2, "[linear] expected a weight (out, in), got ", w.shape(), "; reshape it");
  LOCKSTEP_CHECK(x.dim() >= 1 && x.size(-1) == w.size(1), "[linear] expected an input (..., ", w.size(1),
                 ") for weight ", w.shape(), ", got ", x.shape(), "; reshape the input, or change the weight");
  if (bias.defined()) {
    check_product("linear", bias, x);
    LOCKSTEP_CHECK(bias.shape() == Shape{w.size(0)}, "[linear] expected a bias ", Shape{w.size(0)}, ", got ",
                   bias.shape(), "; reshape the bias");
  }
}

/// linear() that writes into `out`, without checks; `out` has the right number of elements, in any shape. `added`, if
/// defined, is a residual to add.
void run_linear(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation,
                const Tensor& pre, const Tensor& added = {}) {
  const Tensor rows = as_matrix(x);
  const Shape shape{rows.size(0), w.size(0)};
  Tensor to = out.view(shape), values = pre.defined() ? pre.view(shape) : pre;
  run(rows, w.t(), added.defined() ? added.contiguous().view(shape) : added, bias.defined() ? bias.contiguous() : bias,
      {.beta = added.defined() ? 1. : 0., .activation = activation}, values, to);
}

std::atomic<MatmulPrecision> f32_products{MatmulPrecision::full};

}  // namespace

void set_float32_matmul_precision(MatmulPrecision precision) {
  f32_products.store(precision, std::memory_order_relaxed);
}
MatmulPrecision float32_matmul_precision() { return f32_products.load(std::memory_order_relaxed); }

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (const StoredMatrix* const stored = stored_in(b)) return matmul(a, stored->numbers(a.dtype()));
  check_product("matmul", a, b, true);
  LOCKSTEP_CHECK(a.dim() > 0 && b.dim() > 0, "[matmul] expected at least 1 dim, got ", a.shape(), " and ", b.shape(),
                 " (multiply by a scalar with *)");
  const Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a, right = b.dim() == 1 ? b.unsqueeze(1) : b;
  const int64_t m = left.size(-2), k = left.size(-1), n = right.size(-1);
  LOCKSTEP_CHECK(k == right.size(-2), "[matmul] expected the inner sizes to agree, got ", a.shape(), " and ", b.shape(),
                 "; transpose or reshape one of them");
  if (a.dim() == 2 && b.dim() == 2) return run(a, b, {m, n});
  Shape batch = broadcast_shapes("matmul", Shape(left.shape().begin(), left.shape().end() - 2),
                                 Shape(right.shape().begin(), right.shape().end() - 2));
  Shape full = batch, full_a = batch, full_b = batch;
  full.push_back(m), full.push_back(n);
  full_a.push_back(m), full_a.push_back(k);
  full_b.push_back(k), full_b.push_back(n);
  Tensor out;
  // Multiply one tall matrix instead of a batch of matrices.
  if (right.dim() == 2 && left.dim() > 2 && left.numel() > 0 && rows_fold(left)) {
    const int64_t rows = numel_of(batch) * m;
    out = run(left.view({rows, k}), right, {rows, n}).view(full);
  } else {
    out = run(left.expand(full_a), right.expand(full_b), full);
  }
  if (b.dim() == 1) out = out.squeeze(-1);
  return a.dim() == 1 ? out.squeeze(b.dim() == 1 ? -1 : -2) : out;
}

Tensor matmul_unary_grad(const Tensor& a, const Tensor& b, PointwiseOp op, const PointwiseArgs& args,
                         const Tensor& kept) {
  if (const StoredMatrix* const stored = stored_in(b))
    return matmul_unary_grad(a, stored->numbers(a.dtype()), op, args, kept);
  const bool fits = a.dim() == 2 && b.dim() == 2 && are_matrices(a) && are_matrices(b) && kept.is_contiguous() &&
                    kept.dtype() == a.dtype() && kept.shape() == Shape{a.size(0), b.size(1)};
  const bool is_short = a.dtype() == f16 || a.dtype() == bf16;  // the CPU rounds the product before the derivative
  if (!kernels::matmul_unary_grad.runs_on(a.device()) || !fits || (is_short && a.device().is_cpu()))
    return pointwise_grad(op, PointwisePart::grad0, args, matmul(a, b), kept, {});
  check_product("matmul", a, b);
  LOCKSTEP_CHECK(a.size(1) == b.size(0), "[matmul] expected the inner sizes to agree, got ", a.shape(), " and ",
                 b.shape(), "; transpose or reshape one of them");
  Tensor out = empty(kept.shape(), {.dtype = a.dtype(), .device = a.device()});
  MacCounter::add(out.numel() * a.size(1));
  kernels::matmul_unary_grad.as("matmul", a.device(), a, b, op, args, kept, out);
  return out;
}

void matmul_into(const Tensor& out, const Tensor& a, const Tensor& b, bool adds) {
  check_product("matmul_into", a, b);
  check_same_device("matmul_into", a, out);
  const bool is_short = a.dtype() == f16 || a.dtype() == bf16, widens = is_short && out.dtype() == f32;
  LOCKSTEP_CHECK(out.dtype() == a.dtype() || widens, "[matmul_into] expected a result in ", a.dtype(),
                 is_short ? " or f32" : "", ", got ", out.dtype());
  LOCKSTEP_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && has_full_rows(out) &&
                     out.shape() == Shape({a.size(0), b.size(1)}),
                 "[matmul_into] expected matrices (M, K) and (K, N) and an (M, N) of contiguous rows, got ", a.shape(),
                 ", ", b.shape(), " and ", out.shape(), " with strides ", out.strides());
  Tensor none, to = out;
  out.storage()->bump_version("matmul_into");
  kernels::matmul(a.device(), as_matrices(a), as_matrices(b), adds ? out : none, none, {.beta = adds ? 1. : 0.}, none,
                  to);
}

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, Scalar beta, Scalar alpha) {
  check_product("addmm", a, b, true);
  check_product("addmm", c, a, true);
  LOCKSTEP_CHECK(a.dim() == 2 && b.dim() == 2, "[addmm] expected two matrices, got ", a.shape(), " and ", b.shape());
  LOCKSTEP_CHECK(a.size(1) == b.size(0), "[addmm] expected the inner sizes to agree, got ", a.shape(), " and ",
                 b.shape(), "; transpose or reshape one of them");
  const Shape shape{a.size(0), b.size(1)};
  LOCKSTEP_CHECK(c.dim() <= 2 && broadcast_shapes("addmm", c.shape(), shape) == shape,
                 "[addmm] expected a c that broadcasts to ", shape, ", got ", c.shape(), "; reshape c");
  if (is_integral(a.dtype())) return add(mul_scalar(c, beta), mul_scalar(matmul(a, b), alpha));
  Tensor none, out = empty(shape, {.dtype = a.dtype(), .device = a.device()});
  const Tensor added = beta == 0 ? none : c.expand(shape).contiguous();
  const MatmulArgs args{.alpha = alpha.real(), .beta = beta.real()};
  MacCounter::add(out.numel() * a.size(1));
  kernels::matmul(a.device(), as_matrices(a), as_matrices(b), added, none, args, none, out);
  return out;
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_product("outer", a, b, true);
  LOCKSTEP_CHECK(a.dim() == 1 && b.dim() == 1, "[outer] expected two vectors, got ", a.shape(), " and ", b.shape());
  return mul(a.unsqueeze(1), b.unsqueeze(0));
}

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation, Tensor* pre) {
  if (const StoredMatrix* const stored = stored_in(w)) {
    if (!pre) return stored->linear(x, bias, activation);
    *pre = stored->linear(x, bias, Activation::none);
    return activated(*pre, activation);
  }
  check_linear(x, w, bias);
  Shape shape = x.shape();
  shape[x.dim() - 1] = w.size(0);
  const TensorOptions like{.dtype = x.dtype(), .device = x.device()};
  if (pre) *pre = empty(shape, like);
  const Tensor out = empty(shape, like);
  run_linear(out, x, w, bias, activation, pre ? *pre : Tensor());
  return out;
}

Tensor linear_padded(const Tensor& x, const Tensor& w) {
  if (stored_in(w)) return linear(x, w);
  check_linear(x, w, {});
  Shape shape = x.shape();
  shape[x.dim() - 1] = w.size(0);
  const Tensor rows = as_matrix(x);
  // Allocate a padded matrix and view it as `shape`. If a padded tensor of `shape` were viewed as a matrix instead, a
  // matrix of one row would be contiguous and lose the padded distance between rows.
  Tensor none, out = empty_padded({rows.size(0), w.size(0)}, {.dtype = x.dtype(), .device = x.device()});
  run(rows, w.t(), none, none, {}, none, out);
  return out.view(shape);
}

Tensor linear_add(const Tensor& residual, const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (stored_in(w)) return add(residual, linear(x, w, bias));
  check_linear(x, w, bias);
  Shape shape = x.shape();
  shape[x.dim() - 1] = w.size(0);
  check_product("linear_add", residual, x);
  LOCKSTEP_CHECK(residual.shape() == shape, "[linear_add] expected a residual ", shape, ", got ", residual.shape());
  const Tensor out = empty(shape, {.dtype = x.dtype(), .device = x.device()});
  run_linear(out, x, w, bias, Activation::none, {}, residual);
  return out;
}

void linear_into(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation,
                 const Tensor& pre) {
  const bool is_stored = stored_in(w);
  if (!is_stored) check_linear(x, w, bias);
  const int64_t count = x.size(-1) > 0 ? x.numel() / x.size(-1) * w.size(0) : out.numel();
  for (const Tensor* to : {&out, &pre})
    LOCKSTEP_CHECK(
        !to->defined() ||
            (to->is_contiguous() && to->numel() == count && to->dtype() == x.dtype() && to->device() == x.device()),
        "[linear_into] expected contiguous memory of ", count, " elements in ", x.dtype(), " on ", x.device(), ", got ",
        to->shape(), " with strides ", to->strides(), " in ", to->dtype(), " on ", to->device());
  if (is_stored) {
    Tensor before;
    out.copy_(linear(x, w, bias, activation, pre.defined() ? &before : nullptr).view(out.shape()));
    if (pre.defined()) pre.copy_(before.view(pre.shape()));
    return;
  }
  out.storage()->bump_version("linear_into");
  if (pre.defined()) pre.storage()->bump_version("linear_into");
  run_linear(out, x, w, bias, activation, pre);
}

}  // namespace lockstep
