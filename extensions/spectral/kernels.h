#pragma once
// The kernels of Fourier transforms. CPU only.
#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Discrete Fourier transform of each row: x and out (rows, n), contiguous, c64 or c128. The forward transform uses
/// exp(-2 pi i j k / n), the inverse its conjugate; the sums are multiplied by `scale`.
using Fft = void(const Tensor& x, bool inverse, double scale, Tensor& out);
/// Forward transform of real rows: x (rows, n), f32 or f64; out (rows, n / 2 + 1), the non-negative frequencies.
using FftReal = void(const Tensor& x, double scale, Tensor& out);
/// Inverse of FftReal: x (rows, n / 2 + 1) is half of a conjugate-symmetric spectrum; out (rows, n), f32 or f64.
using FftToReal = void(const Tensor& x, double scale, Tensor& out);

namespace on_cpu {
Fft fft;
FftReal fft_real;
FftToReal fft_to_real;
}  // namespace on_cpu

}  // namespace lockstep
