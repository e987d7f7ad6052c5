#pragma once
// The kernels that draw gamma and Poisson variates. CPU only.
#include "tensor/op.h"
#include "tensor/random.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Logarithms (f64) of gamma variates of rate 1, see samplers.h. `shape` holds the distribution's shape parameters: f32
/// or f64, contiguous, as many as out has elements.
using LogGammaSample = void(const Tensor& shape, PhiloxKey key, Tensor& out);
/// Derivative of LogGammaSample's result `sample` with respect to `shape`, f64.
using LogGammaSampleGrad = void(const Tensor& shape, const Tensor& sample, Tensor& out);
/// Poisson counts in rate's dtype: f32 or f64, contiguous.
using Poisson = void(const Tensor& rate, PhiloxKey key, Tensor& out);

namespace on_cpu {
LogGammaSample log_gamma_sample;
LogGammaSampleGrad log_gamma_sample_grad;
Poisson poisson;
}  // namespace on_cpu

}  // namespace lockstep
