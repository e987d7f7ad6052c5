#pragma once
// Discrete Fourier transforms on Tensor, on the CPU; autograd/fft.h has the same names for Variable.
#include <optional>

#include "tensor/complex.h"

namespace lockstep::fft {

/// Which transform is divided by the number of elements: the inverse one, both by its square root, the forward one.
enum class Norm { backward, ortho, forward };

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/fft.def"
#undef Value

/// Frequencies of fft() and rfft() of n samples taken d apart, in cycles of the unit of d.
Tensor fftfreq(int64_t n, double d = 1, TensorOptions options = {});
Tensor rfftfreq(int64_t n, double d = 1, TensorOptions options = {});

namespace detail {  // along one dim, x as long as the transform (or as half of it, for real results)
Tensor complex_to_complex(const Tensor& x, int64_t dim, bool inverse, double scale);
Tensor real_to_complex(const Tensor& x, int64_t dim, double scale);
Tensor complex_to_real(const Tensor& x, int64_t n, int64_t dim, double scale);
}  // namespace detail

}  // namespace lockstep::fft
