// Linear algebra for Tensor. The functions here check their arguments, reshape batches and call the kernels. linalg.inc
// builds the other functions of linalg.h from them.
#include "extensions/linear_algebra/linalg.h"

#include <cmath>
#include <functional>

#include "autograd/recorded.h"
#include "extensions/linear_algebra/checks.h"
#include "extensions/linear_algebra/kernels.h"
#include "extensions/operations/operations.h"
#include "tensor/ops_common.h"

namespace lockstep::linalg {
namespace {

Shape with(Shape shape, std::initializer_list<int64_t> more) {
  for (const int64_t size : more) shape.push_back(size);
  return shape;
}

// A build without cuSOLVER has none of the CUDA kernels (meson.build).
constinit const Op<LuSolve> lu_solve_op{"lu_solve", on_cpu::lu_solve, LOCKSTEP_ON_CUDA(on_cuda::lu_solve)};
constinit const Op<LuDeterminant> lu_determinant_op{"lu_determinant", on_cpu::lu_determinant,
                                                    LOCKSTEP_ON_CUDA(on_cuda::lu_determinant)};
constinit const Op<Cholesky> cholesky_op{"cholesky", on_cpu::cholesky, LOCKSTEP_ON_CUDA(on_cuda::cholesky)};
constinit const Op<Qr> qr_op{"qr", on_cpu::qr, LOCKSTEP_ON_CUDA(on_cuda::qr)};
constinit const Op<Svd> svd_op{"svd", on_cpu::svd, LOCKSTEP_ON_CUDA(on_cuda::svd)};
constinit const Op<Eigh> eigh_op{"eigh", on_cpu::eigh, LOCKSTEP_ON_CUDA(on_cuda::eigh)};
constinit const Op<SolveTriangular> solve_triangular_op{"solve_triangular", on_cpu::solve_triangular,
                                                        LOCKSTEP_ON_CUDA(on_cuda::solve_triangular)};
constinit const Op<MatrixExp> matrix_exp_op{"matrix_exp", on_cpu::matrix_exp, nullptr};

/// The device that decomposes a tensor: the tensor's device, or the CPU if that device has no kernels. In a dry run it
/// is the CPU too, because a dry run computes nothing and callers need values.
Device place_of(const Tensor& x) {
  const Device device = x.device();
  return device.is_cpu() || !lu_solve_op.cuda || select_for_kernel(device) ? cpu : device;
}

/// The matrices of `like` as a batch on the device that decomposes them, and their numbers `bad` (kernels.h).
struct Batch {
  explicit Batch(const Tensor& like) : Batch(like, front_dims(like.shape(), 2), place_of(like)) {}
  Batch(const Tensor& like, const Shape& shape, Device device)
      : like(like), shape(shape), device(device), count(numel_of(shape)), bad(size_t(count), 0) {}
  /// x as (batch, rows, columns) on the device; contiguous on the CPU.
  Tensor stacked(const Tensor& x) const {
    const int64_t rows = x.size(-2), columns = x.size(-1);
    const Tensor there = x.expand(with(shape, {rows, columns})).to(device).reshape({count, rows, columns});
    return device.is_cpu() ? there.contiguous() : there;
  }
  /// A tensor (batch, sizes ...) for a result.
  Tensor fresh(std::initializer_list<int64_t> sizes) const {
    return empty(with({count}, sizes), {like.dtype(), device});
  }
  /// A result in the caller's shape, on the device of `like`; undefined if x is.
  Tensor unstacked(const Tensor& x) const {
    if (!x.defined()) return {};
    Shape all = shape;
    for (int d = 1; d < x.dim(); ++d) all.push_back(x.size(d));
    return x.view(all).to(like.device());
  }

  Tensor like;
  Shape shape;
  Device device;
  int64_t count;
  std::vector<int64_t> bad;
};

std::string entry_name(const Shape& batch, int64_t flat) {
  if (batch.rank() == 0) return "the matrix";
  Dims place = batch;
  for (int d = batch.rank() - 1; d >= 0; --d) place[d] = flat % batch[d], flat /= batch[d];
  return str("batch entry ", place);
}

/// Error if a number in `bad` is not 0; the Error names the first such matrix of the batch.
void check_entries(const char* op, const Shape& batch, const std::vector<int64_t>& bad, const char* expected,
                   const std::function<std::string(int64_t)>& got) {
  for (size_t i = 0; i < bad.size(); ++i)
    LOCKSTEP_CHECK(bad[i] == 0, "[", op, "] expected ", expected, ", got ", entry_name(batch, int64_t(i)), " ",
                   got(bad[i]));
}

std::string zero_pivot(int64_t place) { return str("that is singular: pivot ", place, " of its LU is 0; use pinv()"); }

void check_same(const char* op, const Tensor& a, const Tensor& b) {
  check_matrices(op, b);
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
  LOCKSTEP_CHECK(b.size(-2) == a.size(-1), "[", op, "] expected b with ", a.size(-1), " rows for a of shape ",
                 a.shape(), ", got ", b.shape(), "; transpose or reshape one of them");
}

void check_finite(const char* op, const Batch& batch) {
  check_entries(op, batch.shape, batch.bad, "finite matrices",
                [](int64_t) { return std::string("that is not finite or did not converge; correct it, or use f64"); });
}

/// Singular values of a, and the vectors if asked for.
SvdOf<Tensor> singular(const char* op, const Tensor& a, bool vectors, bool full) {
  check_matrices(op, a);
  Batch batch(a);
  const int64_t m = a.size(-2), n = a.size(-1), k = std::min(m, n);
  Tensor u, vh, s = batch.fresh({k});
  if (vectors) u = batch.fresh({m, full ? m : k}), vh = batch.fresh({full ? n : k, n});
  if (k == 0 && vectors) {  // no singular values: the vectors are identities, or empty
    u.copy_(eye(m, u.size(2), {a.dtype(), batch.device}).expand(u.shape()));
    vh.copy_(eye(vh.size(1), n, {a.dtype(), batch.device}).expand(vh.shape()));
  } else if (a.numel() > 0) {
    svd_op.as(op, batch.device, batch.stacked(a), u, s, vh, batch.bad);
    check_finite(op, batch);
  }
  return {batch.unstacked(u), batch.unstacked(s), batch.unstacked(vh)};
}

EighOf<Tensor> symmetric(const char* op, const Tensor& a, bool upper, bool vectors) {
  check_square(op, a);
  Batch batch(a);
  const int64_t n = a.size(-1);
  Tensor v, values = batch.fresh({n});
  if (vectors) v = batch.fresh({n, n});
  if (a.numel() > 0) {
    eigh_op.as(op, batch.device, batch.stacked(upper ? a.t() : a), values, v, batch.bad);
    check_finite(op, batch);
  }
  return {batch.unstacked(values), batch.unstacked(v)};
}

struct Determinants {
  Tensor det, sign, log_abs;
};
Determinants determinants(const char* op, const Tensor& a) {
  check_square(op, a);
  const Batch batch(a);
  Tensor det = batch.fresh({}), sign = batch.fresh({}), log_abs = batch.fresh({});
  if (a.size(-1) == 0) det.fill_(1), sign.fill_(1), log_abs.fill_(0);
  else if (a.numel() > 0) lu_determinant_op.as(op, batch.device, batch.stacked(a), det, sign, log_abs);
  return {batch.unstacked(det), batch.unstacked(sign), batch.unstacked(log_abs)};
}

}  // namespace

void check_matrices(const char* op, const Tensor& a) {
  check_defined(op, a);
  LOCKSTEP_CHECK(a.dtype() == f32 || a.dtype() == f64, "[", op, "] expected f32 or f64, got ", a.dtype(),
                 "; convert with .to(f32)");
  LOCKSTEP_CHECK(a.dim() >= 2, "[", op, "] expected matrices (..., m, n), got ", a.shape(), "; unsqueeze() adds a dim");
}
void check_square(const char* op, const Tensor& a) {
  check_matrices(op, a);
  LOCKSTEP_CHECK(a.size(-1) == a.size(-2), "[", op, "] expected square matrices (..., n, n), got ", a.shape());
}
void check_order(const char* op, double order) {
  for (const double known : {1.0, -1.0, 2.0, -2.0, double(INFINITY), -double(INFINITY)})
    if (order == known) return;
  fail(str("[", op, "] expected an order of 1, -1, 2, -2, inf or -inf, got ", order));
}
void check_regular(const char* op, const Tensor& info) {
  check_entries(op, info.shape(), info.to_vector<int64_t>(), "invertible matrices", zero_pivot);
}

Tensor solve_matrices(const Tensor& a, const Tensor& b) {
  check_square("solve", a);
  check_same("solve", a, b);
  Batch batch(a, broadcast_shapes("solve", front_dims(a.shape(), 2), front_dims(b.shape(), 2)), place_of(a));
  Tensor x = batch.fresh({a.size(-1), b.size(-1)});
  if (batch.count > 0 && a.size(-1) > 0)
    lu_solve_op.as("solve", batch.device, batch.stacked(a), batch.stacked(b), x, batch.bad);
  check_entries("solve", batch.shape, batch.bad, "invertible matrices", zero_pivot);
  return batch.unstacked(x);
}

Tensor solve_triangles(const Tensor& a, const Tensor& b, bool upper, bool unit) {
  const char* const op = "solve_triangular";
  check_square(op, a);
  check_same(op, a, b);
  const Batch batch(a, broadcast_shapes(op, front_dims(a.shape(), 2), front_dims(b.shape(), 2)), place_of(a));
  Tensor x = batch.fresh({a.size(-1), b.size(-1)});
  if (x.numel() > 0) solve_triangular_op(batch.device, batch.stacked(a), batch.stacked(b), upper, unit, x);
  return batch.unstacked(x);
}

InverseOf<Tensor> inv_ex(const Tensor& a) {
  check_square("inv", a);
  Batch batch(a);
  const int64_t n = a.size(-1);
  Tensor x = batch.fresh({n, n});
  if (a.numel() > 0)
    lu_solve_op.as("inv", batch.device, batch.stacked(a), batch.stacked(eye(n, n, {a.dtype(), batch.device})), x,
                   batch.bad);
  return {batch.unstacked(x), Tensor::from(batch.bad, {batch.count}).view(batch.shape).to(a.device())};
}

Tensor cholesky(const Tensor& a, bool upper) {
  check_square("cholesky", a);
  if (upper) return cholesky(a.t(), false).t().contiguous();
  Batch batch(a);
  Tensor out = batch.fresh({a.size(-1), a.size(-1)});
  if (a.numel() > 0) cholesky_op(batch.device, batch.stacked(a), out, batch.bad);
  check_entries("cholesky", batch.shape, batch.bad, "positive definite matrices", [](int64_t order) {
    return str("whose leading minor of order ", order, " is not positive; add to its diagonal");
  });
  return batch.unstacked(out);
}

QrOf<Tensor> qr(const Tensor& a, QrMode mode) {
  check_matrices("qr", a);
  const Batch batch(a);
  const int64_t m = a.size(-2), n = a.size(-1), k = mode == QrMode::complete ? m : std::min(m, n);
  Tensor q, r = batch.fresh({k, n});
  if (mode != QrMode::r) q = batch.fresh({m, k});
  if (a.numel() > 0) {
    qr_op(batch.device, batch.stacked(a), q, r);
  } else {
    r.fill_(0);
    if (q.defined()) q.copy_(eye(m, k, {a.dtype(), batch.device}).expand(q.shape()));
  }
  return {batch.unstacked(q), batch.unstacked(r)};
}

SvdOf<Tensor> svd(const Tensor& a, bool full_matrices) { return singular("svd", a, true, full_matrices); }
Tensor svdvals(const Tensor& a) { return singular("svdvals", a, false, false).s; }
EighOf<Tensor> eigh(const Tensor& a, bool upper) { return symmetric("eigh", a, upper, true); }
Tensor eigvalsh(const Tensor& a, bool upper) { return symmetric("eigvalsh", a, upper, false).values; }

Tensor det(const Tensor& a) { return determinants("det", a).det; }
SlogdetOf<Tensor> slogdet(const Tensor& a) {
  const auto [unused, sign, log_abs] = determinants("slogdet", a);
  return {sign, log_abs};
}

Tensor cofactors(const Tensor& a) {
  // The cofactors are det(u) det(vh) u diag(p) vh, where p[i] is the product of all singular values but s[i]. There is
  // no division, so this works for singular matrices too.
  const auto [u, s, vh] = svd(a, false);
  const int64_t n = s.size(-1);
  if (n == 0) return zeros_like(a);
  const Tensor one = ones(with(front_dims(s.shape()), {1}), {s.dtype(), s.device()});
  const Tensor left = cumprod(cat({one, s.narrow(-1, 0, n - 1)}, -1), -1);
  const Tensor right = flip(cumprod(cat({one, flip(s.narrow(-1, 1, n - 1), {-1})}, -1), -1), {-1});
  const Tensor scale = mul(mul(left, right), mul(det(u), det(vh)).unsqueeze(-1));
  return matmul(mul(u, scale.unsqueeze(-2)), vh);
}

Tensor matrix_exp(const Tensor& a) {
  check_square("matrix_exp", a);
  const Batch batch(a, front_dims(a.shape(), 2), cpu);
  Tensor out = batch.fresh({a.size(-1), a.size(-1)});
  if (a.numel() > 0) matrix_exp_op(cpu, batch.stacked(a), out);
  return batch.unstacked(out);
}

Tensor counting(const Tensor& s, std::optional<double> atol, std::optional<double> rtol, int64_t size) {
  for (const auto& tolerance : {atol, rtol})
    LOCKSTEP_CHECK(!tolerance || *tolerance >= 0, "[linalg] expected tolerances (rcond, atol, rtol) >= 0, got ",
                   *tolerance);
  if (s.size(-1) == 0) return zeros_like(s);
  const double eps = s.dtype() == f32 ? 0x1p-23 : 0x1p-52;
  const double relative = rtol ? *rtol : atol && *atol > 0 ? 0 : eps * double(size);
  const Tensor limit = clamp(amax(s, {-1}, true) * relative, atol.value_or(0), INFINITY);
  return gt(s, limit).to(s.dtype());
}
Tensor rank_of(const Tensor& s, std::optional<double> atol, std::optional<double> rtol, int64_t size) {
  return sum(counting(s, atol, rtol, size).to(i64), {-1});
}

Tensor pinv(const Tensor& a, std::optional<double> atol, std::optional<double> rtol, bool hermitian) {
  hermitian ? check_square("pinv", a) : check_matrices("pinv", a);
  const int64_t size = std::max(a.size(-2), a.size(-1));
  const auto scaled = [&](const Tensor& right, const Tensor& values, const Tensor& left) {
    const Tensor count = counting(abs(values), atol, rtol, size);
    const Tensor scale = div(count, where(count.to(boolean), values, ones_like(values)));
    return matmul(mul(right, scale.unsqueeze(-2)), left);
  };
  if (hermitian) {
    const auto [values, vectors] = eigh(a);
    return scaled(vectors, values, vectors.t());
  }
  const auto [u, s, vh] = svd(a, false);
  return scaled(vh.t(), s, u.t());
}

Tensor matrix_rank(const Tensor& a, std::optional<double> atol, std::optional<double> rtol, bool hermitian) {
  hermitian ? check_square("matrix_rank", a) : check_matrices("matrix_rank", a);
  const Tensor s = hermitian ? abs(eigvalsh(a)) : svdvals(a);
  return rank_of(s, atol, rtol, std::max(a.size(-2), a.size(-1)));
}

}  // namespace lockstep::linalg

#define Value Tensor
#include "extensions/linear_algebra/linalg.inc"
#undef Value
