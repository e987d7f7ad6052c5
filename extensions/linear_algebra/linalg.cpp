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

Shape batch_of(const Tensor& a) { return front_dims(a.shape(), 2); }

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

/// x as (batch, rows, columns) on `device`; contiguous on the CPU.
Tensor stacked(const Tensor& x, Device device) {
  const Tensor there = x.to(device).reshape({numel_of(batch_of(x)), x.size(-2), x.size(-1)});
  return device.is_cpu() ? there.contiguous() : there;
}
Tensor stacked(const Tensor& x, const Shape& batch, Device device) {
  return stacked(x.expand(with(batch, {x.size(-2), x.size(-1)})), device);
}
Tensor fresh(const Tensor& like, const Shape& shape, Device device) { return empty(shape, {like.dtype(), device}); }

/// A kernel's result in the caller's shape (batch dims), on the device of `like`.
Tensor unstacked(const Tensor& x, const Shape& batch, const Tensor& like) {
  return x.view(with(batch, {x.size(-2), x.size(-1)})).to(like.device());
}
Tensor rows_of(const Tensor& x, const Shape& batch, const Tensor& like) {
  return x.view(with(batch, {x.size(-1)})).to(like.device());
}

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

void check_finite(const char* op, const Shape& batch, const std::vector<int64_t>& bad) {
  check_entries(op, batch, bad, "finite matrices",
                [](int64_t) { return std::string("that is not finite or did not converge; correct it, or use f64"); });
}

/// Singular values of a, and the vectors if asked for.
SvdOf<Tensor> singular(const char* op, const Tensor& a, bool vectors, bool full) {
  check_matrices(op, a);
  const Shape batch = batch_of(a);
  const Device device = place_of(a);
  const int64_t m = a.size(-2), n = a.size(-1), k = std::min(m, n), count = numel_of(batch);
  Tensor u, vh, s = fresh(a, {count, k}, device);
  if (vectors) u = fresh(a, {count, m, full ? m : k}, device), vh = fresh(a, {count, full ? n : k, n}, device);
  if (k == 0 && vectors) {  // no singular values: the vectors are identities, or empty
    u.copy_(eye(m, u.size(2), {a.dtype(), device}).expand(u.shape()));
    vh.copy_(eye(vh.size(1), n, {a.dtype(), device}).expand(vh.shape()));
  } else if (a.numel() > 0) {
    std::vector<int64_t> bad(size_t(count), 0);
    svd_op.as(op, device, stacked(a, device), u, s, vh, bad);
    check_finite(op, batch, bad);
  }
  if (!vectors) return {{}, rows_of(s, batch, a), {}};
  return {unstacked(u, batch, a), rows_of(s, batch, a), unstacked(vh, batch, a)};
}

EighOf<Tensor> symmetric(const char* op, const Tensor& a, bool upper, bool vectors) {
  check_square(op, a);
  const Shape batch = batch_of(a);
  const Device device = place_of(a);
  const int64_t n = a.size(-1), count = numel_of(batch);
  Tensor v, values = fresh(a, {count, n}, device);
  if (vectors) v = fresh(a, {count, n, n}, device);
  if (a.numel() > 0) {
    std::vector<int64_t> bad(size_t(count), 0);
    eigh_op.as(op, device, stacked(upper ? a.transpose(-2, -1) : a, device), values, v, bad);
    check_finite(op, batch, bad);
  }
  return {rows_of(values, batch, a), vectors ? unstacked(v, batch, a) : Tensor()};
}

struct Determinants {
  Tensor det, sign, log_abs;
};
Determinants determinants(const char* op, const Tensor& a) {
  check_square(op, a);
  const Shape batch = batch_of(a);
  const Device device = place_of(a);
  const Shape each{numel_of(batch)};
  Tensor det = fresh(a, each, device), sign = fresh(a, each, device), log_abs = fresh(a, each, device);
  if (a.size(-1) == 0) det.fill_(1), sign.fill_(1), log_abs.fill_(0);
  else if (a.numel() > 0) lu_determinant_op.as(op, device, stacked(a, device), det, sign, log_abs);
  const auto as = [&](const Tensor& x) { return x.view(batch).to(a.device()); };
  return {as(det), as(sign), as(log_abs)};
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
  const Shape batch = broadcast_shapes("solve", batch_of(a), batch_of(b));
  const Device device = place_of(a);
  const int64_t n = a.size(-1), k = b.size(-1), count = numel_of(batch);
  Tensor x = fresh(a, {count, n, k}, device);
  std::vector<int64_t> bad(size_t(count), 0);
  if (count > 0 && n > 0) lu_solve_op.as("solve", device, stacked(a, batch, device), stacked(b, batch, device), x, bad);
  check_entries("solve", batch, bad, "invertible matrices", zero_pivot);
  return unstacked(x, batch, a);
}

Tensor solve_triangles(const Tensor& a, const Tensor& b, bool upper, bool unit) {
  check_square("solve_triangular", a);
  check_same("solve_triangular", a, b);
  const Shape batch = broadcast_shapes("solve_triangular", batch_of(a), batch_of(b));
  const Device device = place_of(a);
  Tensor x = fresh(a, {numel_of(batch), a.size(-1), b.size(-1)}, device);
  if (x.numel() > 0) solve_triangular_op(device, stacked(a, batch, device), stacked(b, batch, device), upper, unit, x);
  return unstacked(x, batch, a);
}

InverseOf<Tensor> inv_ex(const Tensor& a) {
  check_square("inv", a);
  const Shape batch = batch_of(a);
  const Device device = place_of(a);
  const int64_t n = a.size(-1), count = numel_of(batch);
  Tensor x = fresh(a, {count, n, n}, device);
  std::vector<int64_t> bad(size_t(count), 0);
  if (a.numel() > 0)
    lu_solve_op.as("inv", device, stacked(a, device), stacked(eye(n, n, {a.dtype(), device}), {count}, device), x, bad);
  return {unstacked(x, batch, a), Tensor::from(bad, {count}).view(batch).to(a.device())};
}

Tensor cholesky(const Tensor& a, bool upper) {
  check_square("cholesky", a);
  if (upper) return cholesky(a.transpose(-2, -1), false).transpose(-2, -1).contiguous();
  const Shape batch = batch_of(a);
  const Device device = place_of(a);
  Tensor out = fresh(a, {numel_of(batch), a.size(-1), a.size(-1)}, device);
  std::vector<int64_t> bad(size_t(out.size(0)), 0);
  if (a.numel() > 0) cholesky_op(device, stacked(a, device), out, bad);
  check_entries("cholesky", batch, bad, "positive definite matrices", [](int64_t order) {
    return str("whose leading minor of order ", order, " is not positive; add to its diagonal");
  });
  return unstacked(out, batch, a);
}

QrOf<Tensor> qr(const Tensor& a, QrMode mode) {
  check_matrices("qr", a);
  const Shape batch = batch_of(a);
  const Device device = place_of(a);
  const int64_t m = a.size(-2), n = a.size(-1), count = numel_of(batch),
                k = mode == QrMode::complete ? m : std::min(m, n);
  Tensor q, r = fresh(a, {count, k, n}, device);
  if (mode != QrMode::r) q = fresh(a, {count, m, k}, device);
  if (a.numel() > 0) {
    qr_op(device, stacked(a, device), q, r);
  } else {
    r.fill_(0);
    if (q.defined()) q.copy_(eye(m, k, {a.dtype(), device}).expand(q.shape()));
  }
  return {q.defined() ? unstacked(q, batch, a) : Tensor(), unstacked(r, batch, a)};
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
  const Shape batch = batch_of(a);
  Tensor out = fresh(a, {numel_of(batch), a.size(-1), a.size(-1)}, cpu);
  if (a.numel() > 0) matrix_exp_op(cpu, stacked(a, cpu), out);
  return unstacked(out, batch, a);
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
    return scaled(vectors, values, vectors.transpose(-2, -1));
  }
  const auto [u, s, vh] = svd(a, false);
  return scaled(vh.transpose(-2, -1), s, u.transpose(-2, -1));
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
