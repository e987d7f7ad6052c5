// The steps of RMSprop, Adagrad and Lion on CUDA devices.
#include "extensions/optimizers/step_kernels.h"
#include "optim/cuda/step_update.h"

namespace lockstep::on_cuda {

using namespace optim_steps;

namespace {

template <class A> using CenteredMoving = Rmsprop<A, true, true>;
template <class A> using Centered = Rmsprop<A, true, false>;
template <class A> using Moving = Rmsprop<A, false, true>;
template <class A> using Plain = Rmsprop<A, false, false>;

}  // namespace

void rmsprop(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average, Tensor& momentum, Tensor& low,
             const RmspropArgs& args) {
  const bool moving = args.momentum != 0;
  if (args.centered && moving)
    update_flat<CenteredMoving>("rmsprop", p, grad, {&square_average, &grad_average, &momentum}, low, args);
  else if (args.centered) update_flat<Centered>("rmsprop", p, grad, {&square_average, &grad_average}, low, args);
  else if (moving) update_flat<Moving>("rmsprop", p, grad, {&square_average, &momentum}, low, args);
  else update_flat<Plain>("rmsprop", p, grad, {&square_average}, low, args);
}

void adagrad(Tensor& p, const Tensor& grad, Tensor& sum, Tensor& low, const AdagradArgs& args) {
  update_flat<Adagrad>("adagrad", p, grad, {&sum}, low, args);
}

void lion(Tensor& p, const Tensor& grad, Tensor& m, Tensor& low, const LionArgs& args) {
  update_flat<Lion>("lion", p, grad, {&m}, low, args);
}

}  // namespace lockstep::on_cuda
