// Checks of the samplers, which run on the CPU. See samplers.h.
#include "extensions/distributions/samplers.h"

#include "extensions/distributions/kernels.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

constinit const Op<LogGammaSample> log_gamma_sample_op{"log_gamma_sample", on_cpu::log_gamma_sample, nullptr};
constinit const Op<LogGammaSampleGrad> log_gamma_sample_grad_op{"log_gamma_sample_grad", on_cpu::log_gamma_sample_grad,
                                                                nullptr};
constinit const Op<Poisson> poisson_op{"poisson", on_cpu::poisson, nullptr};

/// A distribution's parameter x, moved to the CPU and made contiguous. Error unless it is f32 or f64.
Tensor parameter_of(const char* op, const Tensor& x) {
  check_floating(op, x);
  LOCKSTEP_CHECK(x.dtype() == f32 || x.dtype() == f64, "[", op, "] expected f32 or f64, got ", x.dtype(),
                 "; convert with .to(f32)");
  return x.to(cpu).contiguous();
}

}  // namespace

Tensor log_gamma_sample(const Tensor& shape) {
  const Tensor own = parameter_of("log_gamma_sample", shape);
  Tensor out = empty(own.shape(), {.dtype = f64, .device = cpu});
  log_gamma_sample_op(cpu, own, next_random_key(), out);
  return out.to(shape.device());
}

Tensor log_gamma_sample_grad(const Tensor& shape, const Tensor& sample) {
  const Tensor own = parameter_of("log_gamma_sample_grad", shape);
  LOCKSTEP_CHECK(sample.defined() && sample.dtype() == f64 && sample.shape() == shape.shape(),
                 "[log_gamma_sample_grad] expected an f64 sample of shape ", shape.shape(),
                 "; pass the result of log_gamma_sample()");
  Tensor out = empty(own.shape(), {.dtype = f64, .device = cpu});
  log_gamma_sample_grad_op(cpu, own, sample.to(cpu).contiguous(), out);
  return out.to(shape.device());
}

Tensor poisson(const Tensor& rate) {
  const Tensor own = parameter_of("poisson", rate);
  Tensor out = empty(own.shape(), {.dtype = own.dtype(), .device = cpu});
  poisson_op(cpu, own, next_random_key(), out);
  return out.to(rate.device());
}

}  // namespace lockstep
