#pragma once
// Random numbers whose distribution differs from element to element, and the kernels that draw them. Element i depends
// only on the generator (tensor/random.h) and i, not on threads or device: numbers are drawn on the CPU and then moved.
#include "tensor/op.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep {

/// Logarithms (f64) of gamma variates of rate 1; the variates themselves may underflow. shape: f32 or f64, > 0.
Tensor log_gamma_sample(const Tensor& shape);
/// The derivative of log_gamma_sample() with respect to `shape` (f64), at constant cumulative probability: implicit
/// reparameterisation (Figurnov et al., 2018). sample: the result of log_gamma_sample().
Tensor log_gamma_sample_grad(const Tensor& shape, const Tensor& sample);
/// Poisson counts, in rate's dtype; rate: f32 or f64, >= 0.
Tensor poisson(const Tensor& rate);

// Kernels of the three functions: the parameter is contiguous, and out has as many elements.
using LogGammaSample = void(const Tensor& shape, PhiloxKey key, Tensor& out);
using LogGammaSampleGrad = void(const Tensor& shape, const Tensor& sample, Tensor& out);
using PoissonSample = void(const Tensor& rate, PhiloxKey key, Tensor& out);

namespace on_cpu {
LogGammaSample log_gamma_sample;
LogGammaSampleGrad log_gamma_sample_grad;
PoissonSample poisson;
}  // namespace on_cpu

}  // namespace lockstep
