// Checks of the samplers, which run on the CPU. See samplers.h.
#include "extensions/distributions/samplers.h"

#include "tensor/ops_common.h"

namespace lockstep {
namespace {

constinit const Op<LogGammaSample> log_gamma_sample_op{"log_gamma_sample", on_cpu::log_gamma_sample, nullptr};
constinit const Op<LogGammaSampleGrad> log_gamma_sample_grad_op{"log_gamma_sample_grad", on_cpu::log_gamma_sample_grad,
                                                                nullptr};
constinit const Op<PoissonSample> poisson_op{"poisson", on_cpu::poisson, nullptr};

/// Calls kernel(x, out) with x on the CPU and contiguous. Returns `out`, of x's shape and `dtype`. Error unless x is
/// f32 or f64.
template <class Kernel> Tensor sampled(const char* op, const Tensor& x, DType dtype, const Kernel& kernel) {
  check_floating(op, x);
  LOCKSTEP_CHECK(x.dtype() == f32 || x.dtype() == f64, "[", op, "] expected f32 or f64, got ", x.dtype(),
                 "; convert with .to(f32)");
  Tensor out = empty(x.shape(), {.dtype = dtype, .device = cpu});
  kernel(x.to(cpu).contiguous(), out);
  return out.to(x.device());
}

}  // namespace

Tensor log_gamma_sample(const Tensor& shape) {
  return sampled("log_gamma_sample", shape, f64,
                 [](const Tensor& own, Tensor& out) { log_gamma_sample_op(cpu, own, next_random_key(), out); });
}

Tensor log_gamma_sample_grad(const Tensor& shape, const Tensor& sample) {
  return sampled("log_gamma_sample_grad", shape, f64, [&](const Tensor& own, Tensor& out) {
    LOCKSTEP_CHECK(sample.defined() && sample.dtype() == f64 && sample.shape() == shape.shape(),
                   "[log_gamma_sample_grad] expected an f64 sample of shape ", shape.shape(),
                   "; pass the result of log_gamma_sample()");
    log_gamma_sample_grad_op(cpu, own, sample.to(cpu).contiguous(), out);
  });
}

Tensor poisson(const Tensor& rate) {
  return sampled("poisson", rate, rate.dtype(),
                 [](const Tensor& own, Tensor& out) { poisson_op(cpu, own, next_random_key(), out); });
}

}  // namespace lockstep
