// Creation of tensors: empty, constant, ranges, random.
#include <cmath>

#include "tensor/complex.h"
#include "tensor/convert.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {

Tensor empty(const Shape& shape, TensorOptions options) {
  check_shape("empty", shape);
  check_complex_device("empty", options.dtype, options.device);
  int64_t bytes = 0;
  LOCKSTEP_CHECK(!__builtin_mul_overflow(numel_of(shape), size_of(options.dtype), &bytes),
                 "[empty] expected fewer than 2^63 bytes, got shape ", shape, "; make it smaller");
  return Tensor(Storage::allocate(bytes, options.device), 0, shape, contiguous_strides(shape), options.dtype);
}

Tensor empty_like(const Tensor& x) {
  check_defined("empty_like", x);
  return empty(x.shape(), {.dtype = x.dtype(), .device = x.device()});
}

Tensor full(const Shape& shape, Scalar value, TensorOptions options) {
  check_fits("full", value, options.dtype);
  Tensor out = empty(shape, options);
  kernels::fill(options.device, out, value);
  return out;
}

Tensor zeros(const Shape& shape, TensorOptions options) { return full(shape, 0, options); }
Tensor ones(const Shape& shape, TensorOptions options) { return full(shape, 1, options); }

Tensor full_like(const Tensor& x, Scalar value) {
  check_defined("full_like", x);
  return full(x.shape(), value, {.dtype = x.dtype(), .device = x.device()});
}

Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
Tensor ones_like(const Tensor& x) { return full_like(x, 1); }

Tensor arange(Scalar start, Scalar end, Scalar step, TensorOptions options) {
  LOCKSTEP_CHECK(options.dtype != boolean && !is_complex(options.dtype), "[arange] expected a real number dtype, got ",
                 options.dtype, "; use i64 or f32");
  const double first = start.real(), last = end.real(), by = step.real();
  LOCKSTEP_CHECK(std::isfinite(first) && std::isfinite(last) && std::isfinite(by) && by != 0,
                 "[arange] expected finite ends and a step other than 0, got ", start, ", ", end, ", ", step);
  LOCKSTEP_CHECK(by > 0 ? first <= last : first >= last, "[arange] expected a step that leads from start to end, got ",
                 start, ", ", end, ", ", step);
  double count = std::ceil((last - first) / by);
  if (is_integral(options.dtype)) {
    const auto exact = [](const Scalar& x, DType dtype) {
      check_fits("arange", x, dtype);
      return x.to<int64_t>();
    };
    const Scalar behind = end.fits(i64) ? end : by > 0 ? std::ceil(last) : std::floor(last);
    const __int128 a = exact(start, options.dtype), b = exact(step, i64),
                   n = (exact(behind, i64) - a + b - (b > 0 ? 1 : -1)) / b;
    count = double(n), start = int64_t(a), step = int64_t(b);
    if (n > 0) exact(int64_t(a + (n - 1) * b), options.dtype);  // check the last element
  }
  LOCKSTEP_CHECK(count < 0x1p62, "[arange] expected fewer than 2^62 elements, got ", count, "; use a larger step");
  Tensor out = empty({int64_t(count)}, options);
  kernels::iota(options.device, out, start, step);
  return out;
}

Tensor arange(int64_t end, TensorOptions options) { return arange(0, end, 1, options); }

Tensor linspace(double start, double end, int64_t steps, TensorOptions options) {
  LOCKSTEP_CHECK(steps >= 0, "[linspace] expected steps >= 0, got ", steps);
  LOCKSTEP_CHECK(is_floating(options.dtype), "[linspace] expected a floating dtype, got ", options.dtype, "; use f32");
  Tensor out = empty({steps}, options);
  kernels::iota(options.device, out, start, steps > 1 ? (end - start) / double(steps - 1) : 0);
  if (steps > 1) out.select(0, -1).fill_(end);  // exact, although the sum of steps is rounded
  return out;
}

Tensor eye(int64_t n, int64_t m, TensorOptions options) {
  LOCKSTEP_CHECK(n >= 0 && m >= -1, "[eye] expected n >= 0, and m >= 0 or -1 (for m = n), got ", n, " and ", m);
  Tensor out = zeros({n, m < 0 ? n : m}, options);
  out.diagonal().fill_(1);
  return out;
}

namespace {

/// True if the value stays finite when it is converted to this floating dtype.
bool is_in_range(DType dtype, double value) {
  bool fits = false;
  dispatch<float, double, Half, BFloat16>(dtype, "is_in_range",
                                          [&]<class T> { fits = std::isfinite(convert<double>(convert<T>(value))); });
  return fits;
}

}  // namespace

const Tensor& uniform_(const Tensor& x, double low, double high) {
  check_floating("uniform_", x);
  const DType dtype = x.dtype();
  LOCKSTEP_CHECK(low <= high && is_in_range(dtype, low) && is_in_range(dtype, high) &&
                     is_in_range(dtype == f64 ? f64 : f32, high - low),  // the dtype of the computation
                 "[uniform_] expected low <= high, both and their distance in the range of ", dtype, ", got ", low,
                 " and ", high);
  x.storage()->bump_version("uniform_");
  Tensor out = x.is_contiguous() ? x : empty_like(x);
  kernels::uniform(x.device(), out, low, high, next_random_key(x.device()));
  if (!x.is_contiguous()) x.copy_(out);
  return x;
}

const Tensor& normal_(const Tensor& x, double mean, double deviation) {
  check_floating("normal_", x);
  LOCKSTEP_CHECK(deviation >= 0 && is_in_range(x.dtype(), mean) && is_in_range(x.dtype(), deviation),
                 "[normal_] expected a mean and a deviation >= 0 in the range of ", x.dtype(), ", got ", mean, " and ",
                 deviation);
  x.storage()->bump_version("normal_");
  Tensor out = x.is_contiguous() ? x : empty_like(x);
  kernels::normal(x.device(), out, mean, deviation, next_random_key(x.device()));
  if (!x.is_contiguous()) x.copy_(out);
  return x;
}

Tensor rand(const Shape& shape, TensorOptions options) {
  LOCKSTEP_CHECK(is_floating(options.dtype), "[rand] expected a floating dtype, got ", options.dtype, "; use f32");
  return uniform_(empty(shape, options), 0, 1);
}

Tensor randn(const Shape& shape, TensorOptions options) {
  LOCKSTEP_CHECK(is_floating(options.dtype), "[randn] expected a floating dtype, got ", options.dtype, "; use f32");
  return normal_(empty(shape, options), 0, 1);
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options) {
  LOCKSTEP_CHECK(low < high, "[randint] expected low < high, got ", low, " and ", high);
  LOCKSTEP_CHECK(options.dtype != boolean && !is_complex(options.dtype), "[randint] expected a real number dtype, got ",
                 options.dtype, "; use i64");
  // Integers that the dtype represents without gaps: for floats up to 2^(bits of the mantissa).
  const int digits = options.dtype == f64 ? 53 : options.dtype == f32 ? 24 : options.dtype == f16 ? 11 : 8;
  const int64_t end = int64_t(1) << digits;
  const auto [least, greatest] = is_floating(options.dtype) ? IntegerRange{-end, end} : integer_range(options.dtype);
  LOCKSTEP_CHECK(low >= least && high - 1 <= greatest, "[randint] expected numbers from ", least, " to ", greatest,
                 ", the integers that ", options.dtype, " represents exactly, got ", low, " to ", high - 1,
                 "; draw them in i64");
  Tensor out = empty(shape, options);
  kernels::randint(options.device, out, low, high, next_random_key(options.device));
  return out;
}

Tensor randperm(int64_t n) {
  LOCKSTEP_CHECK(n >= 0, "[randperm] expected n >= 0, got ", n);
  const Tensor out = arange(0, n, 1, {.dtype = i64, .device = cpu});
  auto* values = out.data<int64_t>();
  const PhiloxKey key = next_random_key();
  // Fisher-Yates shuffle: each place gets one of the values not yet placed.
  for (int64_t i = n - 1; i > 0; --i) {
    const auto words = philox(key, uint64_t(i));
    const uint64_t draw = uint64_t(words[1]) << 32 | words[0];
    std::swap(values[i], values[int64_t((unsigned __int128)(draw)*uint64_t(i + 1) >> 64)]);
  }
  return out.to(default_device());
}

Tensor bernoulli(const Shape& shape, double p, TensorOptions options) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[bernoulli] expected a probability from 0 to 1, got ", p);
  const Tensor draw = rand(shape, {.dtype = f32, .device = options.device});
  return lt(draw.to(f64), full({}, p, {.dtype = f64, .device = options.device})).to(options.dtype);
}

}  // namespace lockstep
