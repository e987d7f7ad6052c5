#pragma once
// The step of Signum: its formula, which is compiled for the CPU and for CUDA, and a kernel for each.
#include "tensor/host_device.h"
#include "tensor/tensor.h"

namespace signs {

/// The numbers of a step.
struct SignStep {
  double lr, momentum, grad_scale;
};

/// Updates one element: m becomes the average of the gradients g, and p moves by lr against the sign of m.
template <class T> LOCKSTEP_HD void sign_step(T& p, T& m, T g, const SignStep& o) {
  m = T(o.momentum) * m + T((1 - o.momentum) * o.grad_scale) * g;
  p -= T(o.lr) * T((m > 0) - (m < 0));
}

/// Updates all elements; the tensors are contiguous, and all f32 or all f64.
using SignStepKernel = void(lockstep::Tensor& p, const lockstep::Tensor& grad, lockstep::Tensor& m, const SignStep& o);
SignStepKernel step_on_cpu, step_on_cuda;

}  // namespace signs
