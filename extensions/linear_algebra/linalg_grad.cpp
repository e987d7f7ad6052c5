// Derivatives of linalg::, as formulas over operations that Tensor and Variable both have.
#include "extensions/linear_algebra/linalg.h"

#include <cmath>
#include <functional>

#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "extensions/linear_algebra/checks.h"

namespace lockstep::linalg {
namespace {

// Gradient of a matrix, from the gradient g of its inverse y.
template <class V> V inverse_grad(const V& g, const V& y) { return neg(matmul(y.t(), matmul(g, y.t()))); }

// Gradient of the matrix a, where x solves a x = b, computed from the gradient of b.
template <class V> V left_side_grad(const V& grad_b, const V& x) { return neg(matmul(grad_b, x.t())); }

// Gradient of a symmetric matrix, from the gradient g of its Cholesky factor l (Murray, 2016).
template <class V> V cholesky_grad(const V& g, const V& l) {
  const TensorOptions like{l.dtype(), l.device()};
  const Tensor half = sub(tril(ones({l.size(-1), l.size(-1)}, like)), eye(l.size(-1), -1, like) * 0.5);
  const V p = mul(matmul(l.t(), g), half);
  const V s = solve_triangular(l, solve_triangular(l.t(), p, true), false, false);
  return add(s, s.t()) * 0.5;
}

// Gradient of a square or tall matrix a = q r, where r is square. grad_q or grad_r may be undefined.
template <class V> V tall_qr_grad(const V& grad_q, const V& grad_r, const V& q, const V& r) {
  V m;
  if (grad_r.defined()) m = matmul(r, grad_r.t());
  if (grad_q.defined()) {
    const V other = matmul(grad_q.t(), q);
    m = m.defined() ? sub(m, other) : neg(other);
  }
  V inner = matmul(q, add(tril(m), tril(m, -1).t()));
  if (grad_q.defined()) inner = add(grad_q, inner);
  return solve_triangular(r.t(), inner, false, false);
}

// Gradient of a wide matrix a = q r. The first m columns of a determine q; the rest of r is q^T times the rest of a.
template <class V> V wide_qr_grad(const V& grad_q, const V& grad_r, const V& a, const V& q, const V& r) {
  const int64_t m = q.size(-1), n = r.size(-1);
  if (!grad_r.defined()) {
    const V first = tall_qr_grad(grad_q, V(), q, r.narrow(-1, 0, m));
    return cat(std::vector<V>{first, mul_scalar(a.narrow(-1, m, n - m), 0)}, -1);
  }
  const V grad_rest = grad_r.narrow(-1, m, n - m);
  V all_q = matmul(a.narrow(-1, m, n - m), grad_rest.t());
  if (grad_q.defined()) all_q = add(grad_q, all_q);
  const V first = tall_qr_grad(all_q, grad_r.narrow(-1, 0, m), q, r.narrow(-1, 0, m));
  return cat(std::vector<V>{first, matmul(q, grad_rest)}, -1);
}

/// y_ij / (x_j - x_i), and 0 on the diagonal.
template <class V> V over_gaps(const V& y, const V& x) {
  const Tensor one = eye(x.size(-1), -1, {x.dtype(), x.device()});
  return div(mul(y, rsub_scalar(one, 1)), add(sub(x.unsqueeze(-2), x.unsqueeze(-1)), one));
}

template <class V> V svd_grad(const V& grad_u, const V& grad_s, const V& grad_vh, const V& u, const V& s, const V& vh) {
  const int64_t k = s.size(-1);
  const auto skew = [](const V& x) { return sub(x, x.t()); };
  V inner;  // the gradient of a is u inner vh
  const auto plus = [](const V& x, const V& y) { return x.defined() ? add(x, y) : y; };
  if (grad_s.defined()) inner = mul(grad_s.unsqueeze(-1), eye(k, -1, {s.dtype(), s.device()}));
  const auto over = [&](const V& x) { return over_gaps<V>(skew(x), square(s)); };
  if (grad_u.defined()) inner = plus(inner, mul(over(matmul(u.t(), grad_u)), s.unsqueeze(-2)));
  if (grad_vh.defined()) inner = plus(inner, mul(over(matmul(vh, grad_vh.t())), s.unsqueeze(-1)));
  V out = matmul(u, matmul(inner, vh));
  if (grad_u.defined() && u.size(-2) > k) {
    const V outside = sub(grad_u, matmul(u, matmul(u.t(), grad_u)));
    out = add(out, matmul(div(outside, s.unsqueeze(-2)), vh));
  }
  if (grad_vh.defined() && vh.size(-1) > k) {
    const V outside = sub(grad_vh, matmul(matmul(grad_vh, vh.t()), vh));
    out = add(out, matmul(u, div(outside, s.unsqueeze(-1))));
  }
  return out;
}

template <class V> V eigh_grad(const V& grad_values, const V& grad_vectors, const V& values, const V& v) {
  V inner;
  if (grad_values.defined())
    inner = mul(grad_values.unsqueeze(-1), eye(values.size(-1), -1, {values.dtype(), values.device()}));
  if (grad_vectors.defined()) {
    const V turned = over_gaps<V>(matmul(v.t(), grad_vectors), values);
    inner = inner.defined() ? add(inner, turned) : turned;
  }
  const V entire = matmul(v, matmul(inner, v.t()));
  return add(entire, entire.t()) * 0.5;
}

// Gradient of the matrix a, from the gradient g of its pseudoinverse p (Golub and Pereyra, 1973).
template <class V> V pinv_grad(const V& g, const V& a, const V& p) {
  const V gt = g.t(), pt = p.t();
  const V first = neg(matmul(pt, matmul(g, pt)));
  const V second = matmul(gt, matmul(p, pt)), third = matmul(matmul(pt, p), gt);
  const V from_rows = sub(second, matmul(a, matmul(p, second))), from_columns = sub(third, matmul(matmul(third, p), a));
  return add(first, add(from_rows, from_columns));
}

// Gradient of the matrix a, from the gradient g of exp(a): the upper right block of exp([[a^T, g], [0, a^T]]) (Mathias,
// 1996).
template <class V> V matrix_exp_grad(const V& g, const V& a) {
  const int64_t n = a.size(-1);
  const V at = a.t();
  const V top = cat(std::vector<V>{at, g}, -1), bottom = cat(std::vector<V>{mul_scalar(g, 0), at}, -1);
  return matrix_exp(cat(std::vector<V>{top, bottom}, -2)).narrow(-2, 0, n).narrow(-1, n, n);
}

/// Gradient of the matrices a, from the gradient g of their determinants `det`: g times det times the transposed
/// inverse, or g times the cofactors if one of the matrices is singular.
Tensor determinant_grad(const Backward& back, const Saved& kept_a, const Saved& kept_det) {
  const Tensor &g = back.grad(), &a = kept_a.get("det"), &det = kept_det.get("det");
  const bool singular = any(eq(det, zeros_like(det))).item<bool>();
  const Tensor cofactor = singular ? cofactors(a) : mul(inv_ex(a).inverse.t(), det.unsqueeze(-1).unsqueeze(-1));
  return mul(g.unsqueeze(-1).unsqueeze(-1), cofactor);
}
/// The same for a second derivative, which needs inverses of all matrices.
Variable determinant_grad(const RecordedBackward& back, const Saved& a, const Saved& det) {
  const Variable value = back.output(det);
  LOCKSTEP_CHECK(!any(eq(value.tensor(), zeros_like(value.tensor()))).item<bool>(),
                 "[det] expected invertible matrices for a second derivative, got a singular one; leave that one out");
  const Variable g = mul(back.grad(), value).unsqueeze(-1).unsqueeze(-1);
  return mul(g, inv_ex(back.input(0, a)).inverse.t());
}

SvdOf<Variable> recorded_svd(const char* name, const Variable& a, const SvdOf<Tensor>& made, bool values_only,
                             bool full) {
  // With `full`, the last vectors belong to no singular value. They are arbitrary, so their gradients are ignored.
  const int64_t k = made.s.size(-1), more_u = made.u.size(-1) - k, more_v = made.vh.size(-2) - k;
  const SvdOf<Saved> kept{made.u, made.s, made.vh};
  std::vector<Tensor> outputs{made.s};
  if (!values_only) outputs.push_back(made.u), outputs.push_back(made.vh);
  auto all = record(name, std::vector<Variable>{a}, outputs, [=, a = Saved(a)](auto& back) {
    using V = Value<decltype(back)>;
    V grad_u, grad_vh;
    if (!values_only) grad_u = back.grad(1), grad_vh = back.grad(2);
    if (grad_u.defined() && more_u > 0) grad_u = grad_u.narrow(-1, 0, k);
    if (grad_vh.defined() && more_v > 0) grad_vh = grad_vh.narrow(-2, 0, k);
    SvdOf<V> f;  // a second derivative decomposes `a` again, because not all factors need be outputs
    if constexpr (std::is_same_v<V, Variable>) f = svd(back.input(0, a), full);
    else f = {kept.u.get(name), kept.s.get(name), kept.vh.get(name)};
    back.give(0, svd_grad<V>(grad_u, back.grad(0), grad_vh, f.u.narrow(-1, 0, k), f.s, f.vh.narrow(-2, 0, k)));
  });
  return {values_only ? Variable() : all[1], all[0], values_only ? Variable() : all[2]};
}

EighOf<Variable> recorded_eigh(const char* name, const Variable& a, const EighOf<Tensor>& made, bool values_only,
                               bool upper) {
  std::vector<Tensor> outputs{made.values};
  if (!values_only) outputs.push_back(made.vectors);
  auto all = record(name, std::vector<Variable>{a}, outputs,
                    [=, a = Saved(a), kept = EighOf<Saved>{made.values, made.vectors}](auto& back) {
                      using V = Value<decltype(back)>;
                      const V grad_vectors = values_only ? V() : back.grad(1);
                      EighOf<V> f;  // as for svd
                      if constexpr (std::is_same_v<V, Variable>) f = eigh(back.input(0, a), upper);
                      else f = {kept.values.get(name), kept.vectors.get(name)};
                      back.give(0, eigh_grad<V>(back.grad(0), grad_vectors, f.values, f.vectors));
                    });
  return {all[0], values_only ? Variable() : all[1]};
}

}  // namespace

Variable solve_matrices(const Variable& a, const Variable& b) {
  const Tensor x = solve_matrices(a.tensor(), b.tensor());
  return on_tape("solve", {&a, &b}, x, [a = Saved(a), x = Saved(x)](auto& back) {
    using V = Value<decltype(back)>;
    const V grad_b = solve_matrices(back.input(0, a).t(), back.grad());
    if (back.needs(0)) back.give(0, left_side_grad<V>(grad_b, back.output(x)));
    back.give(1, grad_b);
  });
}

Variable solve_triangles(const Variable& a, const Variable& b, bool upper, bool unit) {
  const Tensor x = solve_triangles(a.tensor(), b.tensor(), upper, unit);
  return on_tape("solve_triangular", {&a, &b}, x, [=, a = Saved(a), x = Saved(x)](auto& back) {
    using V = Value<decltype(back)>;
    const V grad_b = solve_triangles(back.input(0, a).t(), back.grad(), !upper, unit);
    if (back.needs(0)) {
      const V grad_a = left_side_grad<V>(grad_b, back.output(x));
      back.give(0, upper ? triu(grad_a, unit) : tril(grad_a, -int64_t(unit)));
    }
    back.give(1, grad_b);
  });
}

InverseOf<Variable> inv_ex(const Variable& a) {
  const auto [inverse, info] = inv_ex(a.tensor());
  const auto derivative = [y = Saved(inverse)](auto& back) {
    back.give(0, inverse_grad<Value<decltype(back)>>(back.grad(), back.output(y)));
  };
  return {on_tape("inv", {&a}, inverse, derivative), info};
}

Variable cholesky(const Variable& a, bool upper) {
  if (upper) return cholesky(a.transpose(-2, -1), false).transpose(-2, -1);
  const Tensor l = cholesky(a.tensor(), false);
  return on_tape("cholesky", {&a}, l, [l = Saved(l)](auto& back) {
    back.give(0, cholesky_grad<Value<decltype(back)>>(back.grad(), back.output(l)));
  });
}

QrOf<Variable> qr(const Variable& a, QrMode mode) {
  const QrOf<Tensor> made = qr(a.tensor(), mode);
  const int64_t m = a.size(-2), n = a.size(-1);
  if (!needs_grad({&a})) return {mode == QrMode::r ? Variable() : Variable(made.q), made.r};
  std::vector<Tensor> outputs{made.r};
  if (mode != QrMode::r) outputs.push_back(made.q);
  auto all = record(
      "qr", std::vector<Variable>{a}, outputs, [=, a = Saved(a), q = Saved(made.q), r = Saved(made.r)](auto& back) {
        using V = Value<decltype(back)>;
        LOCKSTEP_CHECK(mode != QrMode::r,
                       "[qr] mode r has no gradient, because it does not keep q; use reduced or complete");
        LOCKSTEP_CHECK(mode == QrMode::reduced || m <= n,
                       "[qr] the gradient of matrices with more rows than columns needs mode reduced, got complete of ",
                       a.get("qr").shape());
        const V &grad_r = back.grad(0), &grad_q = back.grad(1);
        const V kept_q = back.output(q, 1), kept_r = back.output(r, 0);
        back.give(0, m < n ? wide_qr_grad<V>(grad_q, grad_r, back.input(0, a), kept_q, kept_r)
                           : tall_qr_grad<V>(grad_q, grad_r, kept_q, kept_r));
      });
  return {mode == QrMode::r ? Variable() : all[1], all[0]};
}

SvdOf<Variable> svd(const Variable& a, bool full_matrices) {
  const SvdOf<Tensor> made = svd(a.tensor(), full_matrices);
  if (!needs_grad({&a})) return {made.u, made.s, made.vh};
  return recorded_svd("svd", a, made, false, full_matrices);
}
Variable svdvals(const Variable& a) {
  if (!needs_grad({&a})) return svdvals(a.tensor());
  return recorded_svd("svdvals", a, svd(a.tensor(), false), true, false).s;
}

EighOf<Variable> eigh(const Variable& a, bool upper) {
  const EighOf<Tensor> made = eigh(a.tensor(), upper);
  if (!needs_grad({&a})) return {made.values, made.vectors};
  return recorded_eigh("eigh", a, made, false, upper);
}
Variable eigvalsh(const Variable& a, bool upper) {
  if (!needs_grad({&a})) return eigvalsh(a.tensor(), upper);
  return recorded_eigh("eigvalsh", a, eigh(a.tensor(), upper), true, upper).values;
}

Variable det(const Variable& a) {
  const Tensor out = det(a.tensor());
  return on_tape("det", {&a}, out,
                 [a = Saved(a), out = Saved(out)](auto& back) { back.give(0, determinant_grad(back, a, out)); });
}

SlogdetOf<Variable> slogdet(const Variable& a) {
  const SlogdetOf<Tensor> made = slogdet(a.tensor());
  return {made.sign, on_tape("slogdet", {&a}, made.logabsdet, [a = Saved(a)](auto& back) {
            const auto g = back.grad().unsqueeze(-1).unsqueeze(-1);
            back.give(0, mul(g, inv_ex(back.input(0, a)).inverse.t()));
          })};
}

Variable pinv(const Variable& a, std::optional<double> atol, std::optional<double> rtol, bool hermitian) {
  const Tensor p = pinv(a.tensor(), atol, rtol, hermitian);
  return on_tape("pinv", {&a}, p, [hermitian, a = Saved(a), p = Saved(p)](auto& back) {
    const auto grad = pinv_grad<Value<decltype(back)>>(back.grad(), back.input(0, a), back.output(p));
    back.give(0, hermitian ? add(grad, grad.t()) * 0.5 : grad);
  });
}

Variable matrix_exp(const Variable& a) {
  const Tensor out = matrix_exp(a.tensor());
  return on_tape("matrix_exp", {&a}, out, [a = Saved(a)](auto& back) {
    back.give(0, matrix_exp_grad<Value<decltype(back)>>(back.grad(), back.input(0, a)));
  });
}

}  // namespace lockstep::linalg

#define Value Variable
#include "extensions/linear_algebra/linalg.inc"
#undef Value
