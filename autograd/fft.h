#pragma once
// The functions of tensor/fft.h on Variable, with gradients.
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
/// The Fourier transform of real x along `dim`, times `scale`: only the first half, since the rest follows by symmetry.
Variable real_to_complex(const Variable& x, int64_t dim, double scale);
/// The inverse of real_to_complex(): x is the first half of a spectrum, the result has n real numbers, times `scale`.
Variable complex_to_real(const Variable& x, int64_t n, int64_t dim, double scale);
}  // namespace detail

}  // namespace lockstep::fft
