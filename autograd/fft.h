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
/// One transform along `dim`, scaled by `scale`.
Variable complex_to_complex(const Variable& x, int64_t dim, bool inverse, double scale);
/// The first half of the spectrum of real numbers, scaled by `scale`.
Variable real_to_complex(const Variable& x, int64_t dim, double scale);
/// The n real numbers of half a spectrum, scaled by `scale`.
Variable complex_to_real(const Variable& x, int64_t n, int64_t dim, double scale);
}  // namespace detail

}  // namespace lockstep::fft
