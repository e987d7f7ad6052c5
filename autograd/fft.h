#pragma once
// The functions of tensor/fft.h for Variables, with gradients.
#include "autograd/complex.h"
#include "tensor/fft.h"

namespace lockstep::fft {

#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/fft.def"
#undef Value

namespace detail {
/// The Fourier transform of complex x along `dim`, or its inverse, times `scale`.
Variable complex_to_complex(const Variable& x, int64_t dim, bool inverse, double scale);
/// Fourier transform of n real numbers x along `dim`, times `scale`. Returns bins 0 to n / 2; the rest are conjugates.
Variable real_to_complex(const Variable& x, int64_t dim, double scale);
/// Inverse of real_to_complex(): x holds bins 0 to n / 2, the result n real numbers along `dim`, times `scale`.
Variable complex_to_real(const Variable& x, int64_t n, int64_t dim, double scale);
}  // namespace detail

}  // namespace lockstep::fft
