// Fourier transforms along one dim, which call the kernels, and the functions of fft.h, which are composed of them. A
// transform is linear, so its derivative is its adjoint, which is another transform. The adjoint of a complex transform
// is the transform in the other direction, with the same scale. In the half spectrum of real numbers, a bin also stands
// for its conjugate, which is left out. The first bin and, for an even length, the last bin stand for themselves only.
#include "extensions/spectral/fft.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/recorded.h"
#include "extensions/operations/operations.h"
#include "extensions/spectral/kernels.h"
#include "tensor/complex.h"
#include "tensor/ops_common.h"

namespace lockstep::fft {
namespace {

constinit const Op<Fft> fft_op{"fft", on_cpu::fft, nullptr};
constinit const Op<FftReal> fft_real_op{"fft_real", on_cpu::fft_real, nullptr};
constinit const Op<FftToReal> fft_to_real_op{"fft_to_real", on_cpu::fft_to_real, nullptr};

/// Calls the kernel on the rows of x along `dim`. The result has `size` elements along that dim.
template <class Kernel> Tensor along(const Tensor& x, int64_t dim, int64_t size, DType dtype, Kernel kernel) {
  const Tensor rows = x.transpose(dim, -1).contiguous();
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = size;
  Tensor out = empty(shape, {.dtype = dtype, .device = x.device()});
  kernel(rows, out);
  return out.transpose(dim, -1).contiguous();
}

// --- along one dim; x has the transform's length already (complex_to_real: n / 2 + 1) ---

/// The Fourier transform of complex x along `dim`, or its inverse, times `scale`.
Tensor complex_to_complex(const Tensor& x, int64_t dim, bool inverse, double scale) {
  return along(x, dim, x.size(dim), x.dtype(),
               [&](const Tensor& rows, Tensor& out) { fft_op(x.device(), rows, inverse, scale, out); });
}
Variable complex_to_complex(const Variable& x, int64_t dim, bool inverse, double scale) {
  return on_tape("fft", {&x}, complex_to_complex(x.tensor(), dim, inverse, scale), [dim, inverse, scale](auto& back) {
    back.give(0, complex_to_complex(back.grad(), dim, !inverse, scale));
  });
}

/// Fourier transform of n real numbers x along `dim`, times `scale`. Returns bins 0 to n / 2; the rest are conjugates.
Tensor real_to_complex(const Tensor& x, int64_t dim, double scale) {
  check_complex_device("rfft", c64, x.device());
  return along(x, dim, x.size(dim) / 2 + 1, x.dtype() == f32 ? c64 : c128,
               [&](const Tensor& rows, Tensor& out) { fft_real_op(x.device(), rows, scale, out); });
}
Variable real_to_complex(const Variable& x, int64_t dim, double scale);

/// Inverse of real_to_complex(): x holds bins 0 to n / 2, the result n real numbers along `dim`, times `scale`.
Tensor complex_to_real(const Tensor& x, int64_t n, int64_t dim, double scale) {
  return along(x, dim, n, real_dtype(x.dtype()),
               [&](const Tensor& rows, Tensor& out) { fft_to_real_op(x.device(), rows, scale, out); });
}

/// Weights for the n / 2 + 1 bins of the half spectrum of n real numbers: 1 for self-conjugate bins (the first, and for
/// an even n the last), else `twice`. The weights lie along `dim`; the result has `rank` dims, so that it broadcasts.
Tensor half_weights(int64_t n, int64_t dim, int rank, double twice, DType dtype) {
  const Tensor weights = full({n / 2 + 1}, twice, {.dtype = dtype, .device = cpu});
  weights.narrow(0, 0, 1).fill_(1);
  if (n % 2 == 0) weights.narrow(0, n / 2, 1).fill_(1);
  Shape shape = Dims::filled(rank, 1);
  shape[normalize_dim("fft", dim, rank)] = n / 2 + 1;
  return weights.reshape(shape);
}

Variable complex_to_real(const Variable& x, int64_t n, int64_t dim, double scale) {
  return on_tape("irfft", {&x}, complex_to_real(x.tensor(), n, dim, scale), [dim, n, scale](auto& back) {
    const Value<decltype(back)> weights = half_weights(n, dim, bare(back.grad()).dim(), 2, back.grad().dtype());
    back.give(0, mul(real_to_complex(back.grad(), dim, scale), weights));
  });
}
Variable real_to_complex(const Variable& x, int64_t dim, double scale) {
  return on_tape("rfft", {&x}, real_to_complex(x.tensor(), dim, scale), [dim, n = x.size(dim), scale](auto& back) {
    const Value<decltype(back)> weights =
        half_weights(n, dim, bare(back.grad()).dim(), 0.5, real_dtype(back.grad().dtype()));
    back.give(0, complex_to_real(mul(back.grad(), weights), n, dim, scale));
  });
}

// --- arguments ---

template <class T> T with_parts(const char* op, const T& x) {
  LOCKSTEP_CHECK(is_complex(x.dtype()) || x.dtype() == f32 || x.dtype() == f64, "[", op,
                 "] expected f32, f64, c64 or c128, got ", x.dtype(), "; convert with .to(f32)");
  return is_complex(x.dtype()) ? x : x.to(x.dtype() == f32 ? c64 : c128);
}

template <class T> const T& without_parts(const char* op, const T& x) {
  LOCKSTEP_CHECK(x.dtype() == f32 || x.dtype() == f64, "[", op, "] expected f32 or f64, got ", x.dtype(),
                 is_complex(x.dtype()) ? "; use fft() or fftn(), or pass real(x)" : "; convert with .to(f32)");
  return x;
}

/// x cut to n elements along dim, or padded with zeros at the end.
template <class T> T resized(const T& x, int64_t dim, int64_t n) {
  const int64_t size = x.size(dim);
  if (size >= n) return size == n ? x : x.narrow(dim, 0, n);
  Shape more = x.shape();
  more[normalize_dim("fft", dim, x.dim())] = n - size;
  return cat(std::vector<T>{x, T(zeros(more, {.dtype = x.dtype(), .device = x.device()}))}, dim);
}

int64_t checked_length(const char* op, const Shape& x, std::optional<int64_t> n, int64_t dim, bool half) {
  LOCKSTEP_CHECK(x.rank() > 0, "[", op, "] expected a tensor of at least one dim, got a scalar; unsqueeze(0) it");
  const int64_t size = x[normalize_dim(op, dim, x.rank())];
  const int64_t length = n && *n != -1 ? *n : half ? 2 * (size - 1) : size;
  LOCKSTEP_CHECK(length >= 1, "[", op, "] expected a length of at least 1 in dim ", dim, ", got ", length,
                 " for shape ", x, "; set n (or s) to at least 1");
  return length;
}

/// The dims as numbers >= 0; if none are given, the last `count` dims.
Dims dims_of(const char* op, const Shape& x, const Dims& dims, int count) {
  Dims all;
  for (const int64_t dim : dims) all.push_back(normalize_dim(op, dim, x.rank()));
  for (int d = x.rank() - count; dims.empty() && d < x.rank(); ++d) all.push_back(d);
  return all;
}

/// The dims (non-negative), and the size given for each, or -1.
std::pair<Dims, Dims> plan_of(const char* op, FftKind kind, const Shape& x, const Dims& s, const Dims& dims) {
  LOCKSTEP_CHECK(!dims.empty() || s.rank() <= x.rank(), "[", op, "] expected at most ", x.rank(), " sizes for ", x,
                 ", got ", s);
  const Dims all = dims_of(op, x, dims, s.empty() ? x.rank() : s.rank());
  LOCKSTEP_CHECK(s.empty() || s.rank() == all.rank(), "[", op, "] expected one size for each of the dims ", all,
                 ", got ", s);
  for (int i = 0; i < all.rank(); ++i)
    LOCKSTEP_CHECK(std::count(all.begin(), all.end(), all[i]) == 1, "[", op, "] expected every dim once, got ", dims,
                   " for shape ", x);
  LOCKSTEP_CHECK(kind == FftKind::complex || !all.empty(), "[", op,
                 "] expected at least one dim, got a scalar; unsqueeze(0) it");
  const Dims sizes = s.empty() ? Dims::filled(all.rank(), -1) : s;
  for (int i = 0; i < all.rank(); ++i)
    checked_length(op, x, sizes[i], all[i], kind == FftKind::from_half && i + 1 == all.rank());
  return {all, sizes};
}

/// The factor by which a transform of n elements multiplies its sums.
double scale_of(FftNorm norm, bool inverse, int64_t n) {
  if (norm == FftNorm::ortho) return 1 / std::sqrt(double(n));
  return inverse == (norm == FftNorm::backward) ? 1 / double(n) : 1;
}

Tensor frequencies(const char* op, int64_t n, double d, int64_t first, int64_t count, TensorOptions options) {
  LOCKSTEP_CHECK(n >= 1 && d != 0, "[", op, "] expected n >= 1 and d other than 0, got ", n, " and ", d);
  LOCKSTEP_CHECK(is_floating(options.dtype), "[", op, "] expected a floating dtype (such as f32) in options, got ",
                 options.dtype);
  const Tensor k = arange(double(first), double(first + count), 1, {.dtype = f64, .device = options.device});
  return div(k, full({}, double(n) * d, {.dtype = f64, .device = options.device})).to(options.dtype);
}

}  // namespace

template <class T> T OneDim::operator()(const T& x, std::optional<int64_t> n, int64_t dim, FftNorm norm) const {
  const int64_t length = checked_length(name, x.shape(), n, dim, kind == FftKind::from_half);
  const double scale = scale_of(norm, inverse, length);
  if (kind == FftKind::complex)
    return complex_to_complex(resized(with_parts(name, x), dim, length), dim, inverse, scale);
  if (kind == FftKind::to_half) {
    const T half = real_to_complex(resized(without_parts(name, x), dim, length), dim, scale);
    return inverse ? conj(half) : half;
  }
  const T half = resized(with_parts(name, inverse ? x : conj(x)), dim, length / 2 + 1);
  return complex_to_real(half, length, dim, scale);
}

template <class T> T ManyDims::operator()(const T& x, const Dims& s, const Dims& dims, FftNorm norm) const {
  T out = kind == FftKind::to_half ? without_parts(name, x) : x;
  const auto [all, sizes] = plan_of(name, kind, x.shape(), s, dims);
  if (kind != FftKind::to_half) out = with_parts(name, x);
  const int last = all.rank() - 1;
  for (int k = 0; k <= last; ++k) {  // the dim with the half spectrum is the last one of an inverse, else the first one
    const int i = kind == FftKind::from_half ? k : last - k;
    out = OneDim{name, i == last ? kind : FftKind::complex, inverse}(out, sizes[i], all[i], norm);
  }
  return out;
}

template <class T> T Shift::operator()(const T& x, const Dims& dims) const {
  const Dims all = dims_of(name, x.shape(), dims, x.dim());
  Dims shifts;
  for (const int64_t dim : all) shifts.push_back(back ? (x.size(dim) + 1) / 2 : x.size(dim) / 2);
  return all.empty() ? x : roll(x, shifts, all);
}

template Tensor OneDim::operator()(const Tensor&, std::optional<int64_t>, int64_t, FftNorm) const;
template Variable OneDim::operator()(const Variable&, std::optional<int64_t>, int64_t, FftNorm) const;
template Tensor ManyDims::operator()(const Tensor&, const Dims&, const Dims&, FftNorm) const;
template Variable ManyDims::operator()(const Variable&, const Dims&, const Dims&, FftNorm) const;
template Tensor Shift::operator()(const Tensor&, const Dims&) const;
template Variable Shift::operator()(const Variable&, const Dims&) const;

Tensor fftfreq(int64_t n, double d, TensorOptions options) {
  return ifftshift(frequencies("fftfreq", n, d, -(n / 2), n, options));
}

Tensor rfftfreq(int64_t n, double d, TensorOptions options) {
  return frequencies("rfftfreq", n, d, 0, n / 2 + 1, options);
}

}  // namespace lockstep::fft
