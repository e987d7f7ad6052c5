#include "extensions/optimizers/fused_rules.h"

#include "optim/rules.h"

namespace lockstep {

namespace kernels {
constinit const Op<RmspropKernel> rmsprop{"rmsprop", on_cpu::rmsprop, LOCKSTEP_ON_CUDA(on_cuda::rmsprop)};
constinit const Op<AdagradKernel> adagrad{"adagrad", on_cpu::adagrad, LOCKSTEP_ON_CUDA(on_cuda::adagrad)};
constinit const Op<LionKernel> lion{"lion", on_cpu::lion, LOCKSTEP_ON_CUDA(on_cuda::lion)};
}  // namespace kernels

namespace optim {

std::vector<OptionRange> AdagradOptions::table() {
  return {{"lr", &lr},
          {"lr_decay", &lr_decay},
          {"weight_decay", &weight_decay},
          {"initial_accumulator", &initial_accumulator},
          {"eps", &eps}};
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Adagrad);
void Adagrad::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const AdagradOptions& o = options_[group];
  const bool first = state.is_new("sum");
  Tensor& sum = state.zeros("sum", p);
  if (first && o.initial_accumulator != 0) sum.fill_(o.initial_accumulator);
  kernels::adagrad(p.device(), p, grad, sum, low,
                   {.lr = o.lr / (1 + double(state.step - 1) * o.lr_decay),
                    .eps = o.eps,
                    .weight_decay = o.weight_decay,
                    .maximize = o.maximize,
                    .grad_scale = grad_scale,
                    .first_lr = o.lr,
                    .lr_decay = o.lr_decay});
}

std::vector<OptionRange> RMSpropOptions::table() {
  return {{"lr", &lr}, {"alpha", &alpha}, {"eps", &eps}, {"weight_decay", &weight_decay}, {"momentum", &momentum}};
}
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(RMSprop);
void RMSprop::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const RMSpropOptions& o = options_[group];
  Tensor& square = state.zeros("square_avg", p);
  Tensor average, momentum;
  if (o.centered) average = state.zeros("grad_avg", p);
  if (o.momentum > 0) momentum = state.zeros("momentum_buffer", p);
  kernels::rmsprop(p.device(), p, grad, square, average, momentum, low,
                   {.lr = o.lr,
                    .alpha = o.alpha,
                    .eps = o.eps,
                    .weight_decay = o.weight_decay,
                    .momentum = o.momentum,
                    .centered = o.centered,
                    .maximize = o.maximize,
                    .grad_scale = grad_scale});
}

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Lion);
void Lion::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  lion_update(options_[group], p, grad, state, low, grad_scale);
}

}  // namespace optim

}  // namespace lockstep
