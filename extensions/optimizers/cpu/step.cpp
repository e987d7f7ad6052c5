// The steps of RMSprop, Adagrad and Lion on the CPU.
#include "extensions/optimizers/step_kernels.h"
#include "optim/cpu/step_update.h"

namespace lockstep::on_cpu {

using namespace optim_steps;

void rmsprop(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average, Tensor& momentum, Tensor& low,
             const RmspropArgs& args) {
  const auto run = [&]<bool centered, bool moving>() {
    Tensor* const state[] = {&square_average, centered ? &grad_average : &momentum, &momentum, nullptr};
    Tensor* used[2 + centered + moving] = {};
    std::copy(state, state + 1 + centered + moving, used);
    update_flat<1 + centered + moving>("rmsprop", p, grad, used, &low,
                                       [&](auto a) { return Rmsprop<decltype(a), centered, moving>(args); });
  };
  const bool moving = args.momentum != 0;
  if (args.centered) moving ? run.operator()<true, true>() : run.operator()<true, false>();
  else moving ? run.operator()<false, true>() : run.operator()<false, false>();
}

void adagrad(Tensor& p, const Tensor& grad, Tensor& sum, Tensor& low, const AdagradArgs& args) {
  Tensor* const state[] = {&sum, nullptr};
  update_flat<1>("adagrad", p, grad, state, &low, [&](auto a) { return Adagrad<decltype(a)>(args); });
}

void lion(Tensor& p, const Tensor& grad, Tensor& m, Tensor& low, const LionArgs& args) {
  Tensor* const state[] = {&m, nullptr};
  update_flat<1>("lion", p, grad, state, &low, [&](auto a) { return Lion<decltype(a)>(args); });
}

}  // namespace lockstep::on_cpu
