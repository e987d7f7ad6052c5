#pragma once
// Discrete Fourier transforms on Tensor, on the CPU only; autograd/fft.h has the same names for Variable.
#include <optional>

#include "tensor/complex.h"

namespace lockstep::fft {

/// Scaling of transforms of n elements: `backward` divides the inverse transform by n, `ortho` divides both transforms
/// by sqrt(n), `forward` divides the forward transform by n.
enum class Norm { backward, ortho, forward };

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/fft.def"
#undef Value

/// The frequency of each output of fft() in cycles per unit of d, for n samples that are d apart:
/// [0, 1, ..., -2, -1] / (n d).
Tensor fftfreq(int64_t n, double d = 1, TensorOptions options = {});
/// The frequency of each output of rfft(): [0, 1, ..., n / 2] / (n d).
Tensor rfftfreq(int64_t n, double d = 1, TensorOptions options = {});

namespace detail {  // along one dim; x has the transform's length already (complex_to_real: n / 2 + 1)
Tensor complex_to_complex(const Tensor& x, int64_t dim, bool inverse, double scale);
Tensor real_to_complex(const Tensor& x, int64_t dim, double scale);
Tensor complex_to_real(const Tensor& x, int64_t n, int64_t dim, double scale);
}  // namespace detail

}  // namespace lockstep::fft
