// The optimizers' steps on the CPU.
#include "optim/cpu/step_update.h"

namespace lockstep::on_cpu {

using namespace optim_steps;

void adam(Tensor& p, const Tensor& grad, Tensor& m, Tensor& v, Tensor& v_max, Tensor& low, const AdamArgs& args) {
  Tensor* const moments[] = {&m, &v, nullptr};
  Tensor* const with_max[] = {&m, &v, &v_max, nullptr};
  if (v_max.defined())
    update_flat<3>("adam", p, grad, with_max, &low, [&](auto a) { return Adam<decltype(a), true>(args); });
  else update_flat<2>("adam", p, grad, moments, &low, [&](auto a) { return Adam<decltype(a), false>(args); });
}

void sgd(Tensor& p, const Tensor& grad, Tensor& momentum, Tensor& low, const SgdArgs& args) {
  Tensor* const none[] = {nullptr};
  Tensor* const with_momentum[] = {&momentum, nullptr};
  if (args.momentum != 0)
    update_flat<1>("sgd", p, grad, with_momentum, &low, [&](auto a) { return Sgd<decltype(a), true>(args); });
  else update_flat<0>("sgd", p, grad, none, &low, [&](auto a) { return Sgd<decltype(a), false>(args); });
}

}  // namespace lockstep::on_cpu
