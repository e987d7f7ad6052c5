// Matrix products: matmul with NumPy's rules, addmm, outer, linear, and einsum composed of them.
#include <algorithm>
#include <atomic>
#include <string>

#include "tensor/einsum.h"
#include "tensor/flops.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"
#include "tensor/padded.h"
#include "tensor/stored_matrix.h"

namespace lockstep {
namespace {

void check_product(const char* op, const Tensor& a, const Tensor& b, bool takes_integers = false) {
  for (const Tensor* x : {&a, &b}) {
    check_defined(op, *x);
    const bool integers = takes_integers && is_integral(x->dtype());
    if (!integers) check_floating(op, *x);
    LOCKSTEP_CHECK(!integers || x->device().is_cpu(), "[", op, "] integer products are supported on the CPU only, got ",
                   x->dtype(), " on ", x->device(), "; move with .to(cpu), or convert with .to(f32)");
  }
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
}

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
    LOCKSTEP_CHECK(!to->defined() || (to->is_contiguous() && to->numel() == count && to->dtype() == x.dtype() &&
                                      to->device() == x.device()),
                   "[linear_into] expected contiguous memory of ", count, " elements in ", x.dtype(), " on ",
                   x.device(), ", got ", to->shape(), " in ", to->dtype(), " on ", to->device());
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

// --- einsum ---
namespace {

/// A tensor with a letter for each dim.
struct Named {
  Tensor tensor;
  std::string names;

  int64_t size(char name) const { return tensor.shape()[int(names.find(name))]; }
  bool has(char name) const { return names.find(name) != std::string::npos; }

  /// The tensor permuted to the order of `wanted`.
  Tensor arranged(const std::string& wanted) const {
    Dims order;
    for (char name : wanted) order.push_back(int64_t(names.find(name)));
    return tensor.permute(order);
  }
};

/// Takes the diagonal of repeated letters, and sums over letters that are not in `wanted`.
Named simplified(Named x, const std::string& wanted) {
  for (size_t i = 0; i < x.names.size(); ++i)
    for (size_t j; (j = x.names.find(x.names[i], i + 1)) != std::string::npos;) {
      const char name = x.names[i];
      x.tensor = x.tensor.diagonal(0, int64_t(i), int64_t(j));  // diagonal() moves the shared dim to the end
      x.names.erase(j, 1);
      x.names.erase(i, 1);
      x.names += name;
      i = 0;
    }
  Dims gone;
  std::string kept;
  for (size_t i = 0; i < x.names.size(); ++i)
    if (wanted.find(x.names[i]) == std::string::npos) gone.push_back(int64_t(i));
    else kept += x.names[i];
  return gone.empty() ? x : Named{sum(x.tensor, gone).to(x.tensor.dtype()), kept};
}

/// Product of two operands, summed over the shared letters that are not in `wanted`.
Named contract(const Named& a, const Named& b, const std::string& wanted) {
  std::string batch, rows, columns, inner;
  int64_t m = 1, n = 1, k = 1;
  Shape shape;
  for (char name : a.names)
    if (!b.has(name)) rows += name, m *= a.size(name);
    else if (wanted.find(name) == std::string::npos) inner += name, k *= a.size(name);
    else batch += name, shape.push_back(a.size(name));
  for (char name : b.names)
    if (!a.has(name)) columns += name, n *= b.size(name);
  Shape left = shape, right = shape, result = shape;
  if (inner.empty()) {  // nothing to sum: a broadcast multiplication
    for (char name : rows) left.push_back(a.size(name)), right.push_back(1);
    for (char name : columns) left.push_back(1), right.push_back(b.size(name));
    return {mul(a.arranged(batch + rows).reshape(left), b.arranged(batch + columns).reshape(right)),
            batch + rows + columns};
  }
  left.push_back(m), left.push_back(k);
  right.push_back(k), right.push_back(n);
  for (char name : rows) result.push_back(a.size(name));
  for (char name : columns) result.push_back(b.size(name));
  const Tensor out =
      matmul(a.arranged(batch + rows + inner).reshape(left), b.arranged(batch + inner + columns).reshape(right));
  return {out.reshape(result), batch + rows + columns};
}

/// Splits "ij,jk->ik" into inputs and output. Without an arrow the output is the letters that occur once,
/// alphabetically.
std::pair<std::vector<std::string>, std::string> parse(const std::string& equation) {
  std::vector<std::string> inputs(1);
  std::string output;
  bool arrow = false;
  for (size_t i = 0; i < equation.size(); ++i) {
    const char c = equation[i];
    if (c == ' ') continue;
    if (c == '-' && i + 1 < equation.size() && equation[i + 1] == '>' && !arrow) {
      arrow = true;
      ++i;
    } else if (c == ',' && !arrow) {
      inputs.emplace_back();
    } else {
      LOCKSTEP_CHECK((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'),
                     "[einsum] expected letters, dots, commas and one ->, got \"", equation, "\"");
      (arrow ? output : inputs.back()) += c;
    }
  }
  std::string all;
  for (const std::string& names : inputs) all += names;
  if (!arrow) {
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i)
      if (all.find(all[i]) == all.rfind(all[i])) output += all[i];
  }
  for (char name : output) {
    LOCKSTEP_CHECK(all.find(name) != std::string::npos,
                   "[einsum] expected output letters that occur in an operand, got ", name, " in \"", equation, "\"");
    LOCKSTEP_CHECK(output.find(name) == output.rfind(name), "[einsum] expected each output letter once, got ", name,
                   " twice in \"", equation, "\"");
  }
  return {inputs, output};
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  if (equation.find('.') != std::string::npos) {
    for (const Tensor& x : operands) check_defined("einsum", x);
    const auto entire = without_ellipsis(equation, operands);
    return einsum(entire.equation, entire.operands);
  }
  const auto [inputs, output] = parse(equation);
  LOCKSTEP_CHECK(inputs.size() == operands.size(), "[einsum] expected ", inputs.size(), " operands for \"", equation,
                 "\", got ", operands.size());
  int64_t sizes[128];
  std::fill_n(sizes, 128, -1);
  std::vector<Named> named;
  for (size_t i = 0; i < operands.size(); ++i) {
    check_product("einsum", operands[0], operands[i], true);
    LOCKSTEP_CHECK(size_t(operands[i].dim()) == inputs[i].size(), "[einsum] expected operand ", i, " to have ",
                   inputs[i].size(), " dims (\"", inputs[i], "\"), got ", operands[i].shape(), "; reshape it");
    for (int d = 0; d < operands[i].dim(); ++d) {
      int64_t& size = sizes[int(inputs[i][size_t(d)])];
      LOCKSTEP_CHECK(size == -1 || size == operands[i].shape()[d], "[einsum] expected ", inputs[i][size_t(d)],
                     " to have size ", size, " everywhere, got ", operands[i].shape(), " for \"", inputs[i], "\"");
      size = operands[i].shape()[d];
    }
    named.push_back({operands[i], inputs[i]});
  }
  // Contract from left to right; `later` holds the letters that the output or a later operand needs.
  Named result;
  for (size_t i = 0; i < named.size(); ++i) {
    std::string later = output;
    for (size_t j = i + 1; j < named.size(); ++j) later += inputs[j];
    const Named next = simplified(named[i], i == 0 ? later : later + result.names);
    result = i == 0 ? next : simplified(contract(result, next, later), later);
  }
  const Tensor out = result.arranged(output);
  return operands.size() == 1 ? out.clone() : out.contiguous();
}

}  // namespace lockstep
