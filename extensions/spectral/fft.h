#pragma once
// Discrete Fourier transforms of any length, for Tensor and, with gradients, for Variable. On the CPU only.
#include <optional>

#include "autograd/ops.h"

namespace lockstep::fft {

/// Scaling of transforms of n elements: `backward` divides the inverse transform by n, `ortho` divides both transforms
/// by sqrt(n), `forward` divides the forward transform by n.
enum class FftNorm { backward, ortho, forward };

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "extensions/spectral/fft.def"
#undef Value
#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "extensions/spectral/fft.def"
#undef Value

/// The frequency of each output of fft() in cycles per unit of d, for n samples that are d apart:
/// [0, 1, ..., -2, -1] / (n d).
Tensor fftfreq(int64_t n, double d = 1, TensorOptions options = {});
/// The frequency of each output of rfft(): [0, 1, ..., n / 2] / (n d).
Tensor rfftfreq(int64_t n, double d = 1, TensorOptions options = {});

namespace detail {  // along one dim; x has the transform's length already (complex_to_real: n / 2 + 1)
/// The factor by which a transform of n elements multiplies its sums.
double scale_of(FftNorm norm, bool inverse, int64_t n);
/// The Fourier transform of complex x along `dim`, or its inverse, times `scale`.
Tensor complex_to_complex(const Tensor& x, int64_t dim, bool inverse, double scale);
Variable complex_to_complex(const Variable& x, int64_t dim, bool inverse, double scale);
/// Fourier transform of n real numbers x along `dim`, times `scale`. Returns bins 0 to n / 2; the rest are conjugates.
Tensor real_to_complex(const Tensor& x, int64_t dim, double scale);
Variable real_to_complex(const Variable& x, int64_t dim, double scale);
/// Inverse of real_to_complex(): x holds bins 0 to n / 2, the result n real numbers along `dim`, times `scale`.
Tensor complex_to_real(const Tensor& x, int64_t n, int64_t dim, double scale);
Variable complex_to_real(const Variable& x, int64_t n, int64_t dim, double scale);
}  // namespace detail

}  // namespace lockstep::fft
