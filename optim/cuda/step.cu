// The optimizers' steps on CUDA devices.
#include "optim/cuda/step_update.h"

namespace lockstep::on_cuda {

using namespace optim_steps;

namespace {

template <class A> using AdamMax = Adam<A, true>;
template <class A> using AdamPlain = Adam<A, false>;
template <class A> using SgdMoving = Sgd<A, true>;
template <class A> using SgdPlain = Sgd<A, false>;

}  // namespace

void adam(Tensor& p, const Tensor& grad, Tensor& m, Tensor& v, Tensor& v_max, Tensor& low, const AdamArgs& args) {
  if (v_max.defined()) update_flat<AdamMax>("adam", p, grad, {&m, &v, &v_max}, low, args);
  else update_flat<AdamPlain>("adam", p, grad, {&m, &v}, low, args);
}

void sgd(Tensor& p, const Tensor& grad, Tensor& momentum, Tensor& low, const SgdArgs& args) {
  if (args.momentum != 0) update_flat<SgdMoving>("sgd", p, grad, {&momentum}, low, args);
  else update_flat<SgdPlain>("sgd", p, grad, {}, low, args);
}

}  // namespace lockstep::on_cuda
