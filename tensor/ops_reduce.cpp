// Reductions, argmax, sorting, and comparisons of whole tensors.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tensor/complex.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

// Dims as a bit mask; an empty list means all dims.
uint32_t dim_bits(const char* op, const Tensor& x, const Dims& dims) {
  if (dims.empty()) return (1u << x.dim()) - 1;
  uint32_t bits = 0;
  for (int64_t dim : dims) {
    const int d = normalize_dim(op, dim, x.dim());
    LOCKSTEP_CHECK(!(bits >> d & 1), "[", op, "] expected no dim twice, got ", dims, " for shape ", x.shape());
    bits |= 1u << d;
  }
  return bits & ((1u << x.dim()) - 1);
}

// The shape with the given dims set to 1 (keepdim) or removed.
Shape reduced_shape(const Shape& shape, uint32_t bits, bool keepdim) {
  Shape out;
  for (int i = 0; i < shape.rank(); ++i) {
    if (!(bits >> i & 1)) out.push_back(shape[i]);
    else if (keepdim) out.push_back(1);
  }
  return out;
}

Tensor reduce(const char* op, ReduceOp kind, const Tensor& x, const Dims& dims, bool keepdim, DType dtype,
              double parameter = 0) {
  check_defined(op, x);
  if (is_complex(x.dtype())) fail_complex(op, x.dtype());
  const uint32_t bits = dim_bits(op, x, dims);
  if (kind == ReduceOp::max || kind == ReduceOp::min) {
    for (int i = 0; i < x.dim(); ++i) {
      LOCKSTEP_CHECK(!(bits >> i & 1) || x.shape()[i] > 0, "[", op, "] expected at least one element along dim ", i,
                     ", got shape ", x.shape(), "; leave empty tensors out");
    }
  }
  Tensor out = empty(reduced_shape(x.shape(), bits, true), {.dtype = dtype, .device = x.device()});
  kernels::reduce.as(op, x.device(), kind, x, bits, parameter, out);
  return keepdim ? out : out.view(reduced_shape(x.shape(), bits, false));
}

DType sum_dtype(const Tensor& x) { return is_floating(x.dtype()) ? x.dtype() : i64; }

ValuesIndices arg_reduce(const char* op, bool largest, const Tensor& x, int64_t dim, bool keepdim) {
  check_defined(op, x);
  const int d = normalize_dim(op, dim, x.dim());
  LOCKSTEP_CHECK(x.dim() == 0 || x.shape()[d] > 0, "[", op, "] expected at least one element along dim ", d,
                 ", got shape ", x.shape(), "; leave empty tensors out");
  const uint32_t bits = x.dim() == 0 ? 0 : 1u << d;
  const Shape shape = reduced_shape(x.shape(), bits, keepdim);
  Tensor values = empty(shape, {.dtype = x.dtype(), .device = x.device()});
  Tensor indices = empty(shape, {.dtype = i64, .device = x.device()});
  kernels::arg_reduce(x.device(), largest, x, d, values, indices);
  return {values, indices};
}

Tensor arg_of(const char* op, bool largest, const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  if (dim) return arg_reduce(op, largest, x, *dim, keepdim).indices;
  check_defined(op, x);
  LOCKSTEP_CHECK(x.numel() > 0, "[", op, "] expected at least one element, got shape ", x.shape(), "; leave it out");
  const Tensor place = arg_reduce(op, largest, x.reshape({x.numel()}), 0, false).indices;
  return keepdim ? place.view(Shape::filled(x.dim(), 1)) : place;
}

int64_t line_length(const char* op, const Tensor& x, int d) {
  const int64_t n = x.dim() == 0 ? 1 : x.shape()[d];
  LOCKSTEP_CHECK(n < int64_t(1) << 32, "[", op, "] expected fewer than 2^32 elements along dim ", d, ", got shape ",
                 x.shape(), "; split it");
  return n;
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  check_defined("sum", x);
  if (is_complex(x.dtype())) return complex_sum(x, dims, keepdim);
  return reduce("sum", ReduceOp::sum, x, dims, keepdim, sum_dtype(x));
}

Tensor column_sums(const Tensor& x) {
  check_floating("column_sums", x);
  LOCKSTEP_CHECK(x.dim() == 2, "[column_sums] expected a matrix, got ", x.shape(), "; reshape it");
  Tensor out = empty({x.size(1)}, {.dtype = x.dtype(), .device = x.device()});
  kernels::column_sums(x.device(), x, out);
  return out;
}

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  check_floating("mean", x);
  return reduce("mean", ReduceOp::mean, x, dims, keepdim, x.dtype());
}

Tensor prod(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce("prod", ReduceOp::prod, x, dims, keepdim, sum_dtype(x));
}

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce("amax", ReduceOp::max, x, dims, keepdim, x.dtype());
}

Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce("amin", ReduceOp::min, x, dims, keepdim, x.dtype());
}

Tensor var(const Tensor& x, const Dims& dims, double correction, bool keepdim) {
  check_floating("var", x);
  return reduce("var", ReduceOp::var, x, dims, keepdim, x.dtype(), correction);
}

Tensor stddev(const Tensor& x, const Dims& dims, double correction, bool keepdim) {
  check_floating("stddev", x);
  // Sum in f64, as norm() does.
  return sqrt(reduce("stddev", ReduceOp::var, x, dims, keepdim, f64, correction)).to(x.dtype());
}

Tensor norm(const Tensor& x, const Dims& dims, bool keepdim) {
  check_floating("norm", x);
  // The squares of large f32 numbers fit only f64, so the result is rounded after the root.
  return sqrt(reduce("norm", ReduceOp::sum_squares, x, dims, keepdim, f64)).to(x.dtype());
}

Tensor sum_squares(const Tensor& x, const Dims& dims, bool keepdim, std::optional<DType> dtype) {
  check_floating("sum_squares", x);
  LOCKSTEP_CHECK(!dtype || *dtype == x.dtype() || *dtype == f64, "[sum_squares] expected a result of ", x.dtype(),
                 " or f64, got ", *dtype);
  return reduce("sum_squares", ReduceOp::sum_squares, x, dims, keepdim, dtype.value_or(x.dtype()));
}

Tensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce("any", ReduceOp::any, x, dims, keepdim, boolean);
}

Tensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce("all", ReduceOp::all, x, dims, keepdim, boolean);
}

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  check_floating("logsumexp", x);
  return reduce("logsumexp", ReduceOp::logsumexp, x, dims, keepdim, x.dtype());
}

ValuesIndices max(const Tensor& x, int64_t dim, bool keepdim) { return arg_reduce("max", true, x, dim, keepdim); }
ValuesIndices min(const Tensor& x, int64_t dim, bool keepdim) { return arg_reduce("min", false, x, dim, keepdim); }

Tensor max(const Tensor& x) { return reduce("max", ReduceOp::max, x, {}, false, x.dtype()); }

Tensor min(const Tensor& x) { return reduce("min", ReduceOp::min, x, {}, false, x.dtype()); }

Tensor argmax(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return arg_of("argmax", true, x, dim, keepdim);
}
Tensor argmin(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return arg_of("argmin", false, x, dim, keepdim);
}

ValuesIndices sort(const Tensor& x, int64_t dim, bool descending) {
  check_defined("sort", x);
  const int d = normalize_dim("sort", dim, x.dim());
  line_length("sort", x, d);
  Tensor values = empty_like(x), indices = empty(x.shape(), {.dtype = i64, .device = x.device()});
  kernels::sort(x.device(), x, d, descending, values, indices);
  return {values, indices};
}

ValuesIndices topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  check_defined("topk", x);
  LOCKSTEP_CHECK(x.dim() > 0, "[topk] expected a tensor of at least one dim, got a scalar; unsqueeze(0) adds a dim");
  const int d = normalize_dim("topk", dim, x.dim());
  const int64_t n = line_length("topk", x, d);
  LOCKSTEP_CHECK(k >= 0 && k <= n, "[topk] expected k from 0 to ", n, " (the size of dim ", d, " of ", x.shape(),
                 "), got ", k);
  Shape shape = x.shape();
  shape[d] = k;
  Tensor values = empty(shape, {.dtype = x.dtype(), .device = x.device()});
  Tensor indices = empty(shape, {.dtype = i64, .device = x.device()});
  kernels::topk(x.device(), x, d, k, largest, values, indices);
  return {values, indices};
}

bool all_finite(const Tensor& x) {
  check_defined("all_finite", x);
  return kernels::all_finite(x.device(), x);
}

bool unscale_(const std::vector<Tensor>& tensors, double factor) {
  if (tensors.empty()) return true;
  std::vector<Tensor> pieces;
  bool finite = true;
  for (const Tensor& x : tensors) {
    check_floating("unscale_", x);
    check_same_device("unscale_", tensors[0], x);
    if (x.is_contiguous()) {
      x.storage()->bump_version("unscale_");
      pieces.push_back(x);
    } else {
      finite &= all_finite(x);
      mul_scalar_(x, factor);
    }
  }
  return (pieces.empty() || kernels::unscale(tensors[0].device(), pieces, factor)) && finite;
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check_defined("sum_to", x);
  if (x.shape() == shape) return x;
  const int added = x.dim() - shape.rank();
  bool fits = added >= 0;
  Dims dims;
  for (int i = 0; fits && i < x.dim(); ++i) {
    const int64_t wanted = i < added ? 1 : shape[i - added];
    if (i < added || wanted != x.shape()[i]) dims.push_back(i);
    fits = i < added || wanted == x.shape()[i] || wanted == 1;
  }
  LOCKSTEP_CHECK(fits, "[sum_to] expected a shape that broadcasts to ", x.shape(), ", got ", shape);
  if (is_complex(x.dtype())) return complex_sum(x, dims, true).view(shape);
  return reduce("sum_to", ReduceOp::sum, x, dims, true, sum_dtype(x)).view(shape);
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol) {
  check_defined("allclose", a);
  check_defined("allclose", b);
  check_same_dtype("allclose", a, b);
  check_same_device("allclose", a, b);
  const Shape shape = broadcast_shapes("allclose", a.shape(), b.shape());
  if (is_complex(a.dtype())) return allclose(view_as_real(a), view_as_real(b), rtol, atol);
  const DType wide = is_floating(a.dtype()) ? f64 : i64;
  const auto values = [&](const Tensor& x) { return x.expand(shape).to(cpu).to(wide).contiguous(); };
  const Tensor left = values(a), right = values(b);
  bool all = true;
  dispatch<double, int64_t>(wide, "allclose", [&]<class T> {
    using D = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;  // differences of i64 fit u64
    const T *p = left.data<T>(), *q = right.data<T>();
    for (int64_t i = 0; all && i < left.numel(); ++i) {
      const double apart = double(p[i] > q[i] ? D(p[i]) - D(q[i]) : D(q[i]) - D(p[i]));
      all = p[i] == q[i] || (std::isfinite(double(q[i])) && apart <= atol + rtol * std::abs(double(q[i])));
    }
  });
  return all;
}

bool equal(const Tensor& a, const Tensor& b) {
  check_defined("equal", a);
  check_defined("equal", b);
  check_same_device("equal", a, b);
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  if (a.numel() == 0) return true;
  const Tensor left = a.to(cpu).contiguous(), right = b.to(cpu).contiguous();
  return std::memcmp(left.raw_data(), right.raw_data(), size_t(a.numel() * size_of(a.dtype()))) == 0;
}

}  // namespace lockstep
