// Optimizer steps (optim/step_rules.h) on flat tensors, in one pass over memory. The same machine code computes every
// element, wherever it lies in the tensor, so the shards of a tensor get the same bits as the whole tensor.
#include <vector>

#include "optim/cpu/step_lanes.h"
#include "optim/step_kernels.h"
#include "tensor/cpu/parallel.h"

namespace lockstep {

namespace {

using namespace on_cpu;
using namespace optim_steps;

/// Runs one optimizer step on all elements. make(A()) returns the update rule, computed in type A, the dtype of p
/// (f32 or f64). With an f32 p, the gradient may also be f16 or bf16.
template <int states, class Make>
void update(const char* op, Tensor& p, const Tensor& grad, Tensor* const (&state)[states + 1], Tensor* low,
            const Make& make) {
  dispatch<float, double>(p.dtype(), op, [&]<class A> {
    const auto fn = make(A());
    A* values = p.data<A>();
    A* at[states + 1] = {};
    for (int k = 0; k < states; ++k) at[k] = state[k]->template data<A>();
    const int64_t n = p.numel();
    const auto copy_low = [&](int64_t first, int64_t last) {
      if (!low || !low->defined()) return;
      dispatch<Half, BFloat16>(low->dtype(), op, [&]<class L> {
        L* to = low->data<L>();
        for (int64_t i = first; i < last; ++i) to[i] = L(float(values[i]));
      });
    };
    const auto run = [&]<class G> {
      const G* gradient = grad.data<G>();
      parallel_for((n + lane_count<A> - 1) / lane_count<A>, step_grain / lane_count<A>,
                   [&](int64_t first, int64_t last) {
                     constexpr int64_t piece = 4096;  // the copy in 16 bits is made while the piece is in cache
                     last = std::min(last * lane_count<A>, n);
                     for (int64_t i = first * lane_count<A>; i < last; i += piece) {
                       const int64_t end = std::min(i + piece, last);
                       step_range<states>(values, gradient, at, i, end, fn);
                       copy_low(i, end);
                     }
                   });
    };
    if constexpr (std::is_same_v<A, float>) dispatch<float, Half, BFloat16>(grad.dtype(), op, run);
    else dispatch<double>(grad.dtype(), op, run);
  });
}

}  // namespace

void on_cpu::adam(Tensor& p, const Tensor& grad, Tensor& m, Tensor& v, Tensor& v_max, Tensor& low,
                  const AdamArgs& args) {
  Tensor* const moments[] = {&m, &v, nullptr};
  Tensor* const with_max[] = {&m, &v, &v_max, nullptr};
  if (v_max.defined())
    update<3>("adam", p, grad, with_max, &low, [&](auto a) { return Adam<decltype(a), true>(args); });
  else update<2>("adam", p, grad, moments, &low, [&](auto a) { return Adam<decltype(a), false>(args); });
}

void on_cpu::sgd(Tensor& p, const Tensor& grad, Tensor& momentum, Tensor& low, const SgdArgs& args) {
  Tensor* const none[] = {nullptr};
  Tensor* const with_momentum[] = {&momentum, nullptr};
  if (args.momentum != 0)
    update<1>("sgd", p, grad, with_momentum, &low, [&](auto a) { return Sgd<decltype(a), true>(args); });
  else update<0>("sgd", p, grad, none, &low, [&](auto a) { return Sgd<decltype(a), false>(args); });
}

void on_cpu::rmsprop(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average, Tensor& momentum,
                     Tensor& low, const RmspropArgs& args) {
  const auto run = [&]<bool centered, bool moving>() {
    Tensor* const state[] = {&square_average, centered ? &grad_average : &momentum, &momentum, nullptr};
    Tensor* used[2 + centered + moving] = {};
    std::copy(state, state + 1 + centered + moving, used);
    update<1 + centered + moving>("rmsprop", p, grad, used, &low,
                                  [&](auto a) { return Rmsprop<decltype(a), centered, moving>(args); });
  };
  const bool moving = args.momentum != 0;
  if (args.centered) moving ? run.operator()<true, true>() : run.operator()<true, false>();
  else moving ? run.operator()<false, true>() : run.operator()<false, false>();
}

void on_cpu::adagrad(Tensor& p, const Tensor& grad, Tensor& sum, Tensor& low, const AdagradArgs& args) {
  Tensor* const state[] = {&sum, nullptr};
  update<1>("adagrad", p, grad, state, &low, [&](auto a) { return Adagrad<decltype(a)>(args); });
}

void on_cpu::lion(Tensor& p, const Tensor& grad, Tensor& m, Tensor& low, const LionArgs& args) {
  Tensor* const state[] = {&m, nullptr};
  update<1>("lion", p, grad, state, &low, [&](auto a) { return Lion<decltype(a)>(args); });
}

}  // namespace lockstep
