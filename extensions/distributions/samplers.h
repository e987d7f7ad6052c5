#pragma once
// Random numbers whose distribution differs from element to element. Element i depends only on the generator
// (tensor/random.h) and i, not on threads or device: numbers are drawn on the CPU and then moved.
#include "tensor/ops.h"

namespace lockstep {

/// Logarithms (f64) of gamma variates of rate 1; the variates themselves may underflow. shape: f32 or f64, > 0.
Tensor log_gamma_sample(const Tensor& shape);
/// The derivative of log_gamma_sample() with respect to `shape` (f64), at constant cumulative probability: implicit
/// reparameterisation (Figurnov et al., 2018). sample: the result of log_gamma_sample().
Tensor log_gamma_sample_grad(const Tensor& shape, const Tensor& sample);
/// Poisson counts, in rate's dtype; rate: f32 or f64, >= 0.
Tensor poisson(const Tensor& rate);

}  // namespace lockstep
