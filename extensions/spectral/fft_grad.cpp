// Derivatives of Fourier transforms. A transform is linear, so its derivative is its adjoint, which is another
// transform. The adjoint of a complex transform is the transform in the other direction, with the same scale. In the
// half spectrum of real numbers, a bin also stands for its conjugate, which is left out. The first bin and, for an even
// length, the last bin stand for themselves only.
#include "extensions/spectral/fft.h"

#include <utility>

#include "autograd/recorded.h"
#include "extensions/operations/operations.h"

namespace lockstep::fft {
namespace {

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

}  // namespace

Variable detail::complex_to_complex(const Variable& x, int64_t dim, bool inverse, double scale) {
  return on_tape("fft", {&x}, complex_to_complex(x.tensor(), dim, inverse, scale), [dim, inverse, scale](auto& back) {
    back.give(0, complex_to_complex(back.grad(), dim, !inverse, scale));
  });
}

Variable detail::real_to_complex(const Variable& x, int64_t dim, double scale) {
  return on_tape("rfft", {&x}, real_to_complex(x.tensor(), dim, scale), [dim, n = x.size(dim), scale](auto& back) {
    const Value<decltype(back)> weights =
        half_weights(n, dim, bare(back.grad()).dim(), 0.5, real_dtype(back.grad().dtype()));
    back.give(0, complex_to_real(mul(back.grad(), weights), n, dim, scale));
  });
}

Variable detail::complex_to_real(const Variable& x, int64_t n, int64_t dim, double scale) {
  return on_tape("irfft", {&x}, complex_to_real(x.tensor(), n, dim, scale), [dim, n, scale](auto& back) {
    const Value<decltype(back)> weights = half_weights(n, dim, bare(back.grad()).dim(), 2, back.grad().dtype());
    back.give(0, mul(real_to_complex(back.grad(), dim, scale), weights));
  });
}

}  // namespace lockstep::fft

#define Value Variable
#include "extensions/spectral/fft.inc"
#undef Value
