// Functions that call the Fourier kernels, along one dim. fft.inc builds the public functions of fft.h from them.
#include "extensions/spectral/fft.h"

#include <cmath>
#include <utility>

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

Tensor frequencies(const char* op, int64_t n, double d, int64_t first, int64_t count, TensorOptions options) {
  LOCKSTEP_CHECK(n >= 1 && d != 0, "[", op, "] expected n >= 1 and d other than 0, got ", n, " and ", d);
  LOCKSTEP_CHECK(is_floating(options.dtype), "[", op, "] expected a floating dtype (such as f32) in options, got ",
                 options.dtype);
  const Tensor k = arange(double(first), double(first + count), 1, {.dtype = f64, .device = options.device});
  return div(k, full({}, double(n) * d, {.dtype = f64, .device = options.device})).to(options.dtype);
}

}  // namespace

Tensor fftfreq(int64_t n, double d, TensorOptions options) {
  return ifftshift(frequencies("fftfreq", n, d, -(n / 2), n, options));
}

Tensor rfftfreq(int64_t n, double d, TensorOptions options) {
  return frequencies("rfftfreq", n, d, 0, n / 2 + 1, options);
}

double detail::scale_of(FftNorm norm, bool inverse, int64_t n) {
  if (norm == FftNorm::ortho) return 1 / std::sqrt(double(n));
  return inverse == (norm == FftNorm::backward) ? 1 / double(n) : 1;
}

Tensor detail::complex_to_complex(const Tensor& x, int64_t dim, bool inverse, double scale) {
  return along(x, dim, x.size(dim), x.dtype(),
               [&](const Tensor& rows, Tensor& out) { fft_op(x.device(), rows, inverse, scale, out); });
}

Tensor detail::real_to_complex(const Tensor& x, int64_t dim, double scale) {
  check_complex_device("rfft", c64, x.device());
  return along(x, dim, x.size(dim) / 2 + 1, x.dtype() == f32 ? c64 : c128,
               [&](const Tensor& rows, Tensor& out) { fft_real_op(x.device(), rows, scale, out); });
}

Tensor detail::complex_to_real(const Tensor& x, int64_t n, int64_t dim, double scale) {
  return along(x, dim, n, real_dtype(x.dtype()),
               [&](const Tensor& rows, Tensor& out) { fft_to_real_op(x.device(), rows, scale, out); });
}

}  // namespace lockstep::fft

#define Value Tensor
#include "extensions/spectral/fft.inc"
#undef Value
