#pragma once
// Random numbers whose distribution differs from element to element. Element i depends on the generator (random.h) and
// on i, never on the number of threads or the device: they are drawn on the CPU, and moved. Of distributions/.
#include "tensor/ops.h"

namespace lockstep {

/// Logarithms of gamma variates of rate 1, f64: they hold what would be too small as a number. shape: f32 or f64, > 0.
Tensor log_gamma_sample(const Tensor& shape);
/// d sample / d shape where the probability below the sample stays (implicit reparameterisation, Figurnov et al.,
/// 2018), f64. sample: what log_gamma_sample gave.
Tensor log_gamma_sample_grad(const Tensor& shape, const Tensor& sample);
/// Numbers of events, in rate's dtype; rate: f32 or f64, >= 0.
Tensor poisson(const Tensor& rate);

}  // namespace lockstep
