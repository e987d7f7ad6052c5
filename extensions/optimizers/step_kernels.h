#pragma once
// The kernels of RMSprop and Adagrad, and their rules for one element or one SIMD vector of elements, as in
// optim/step_kernels.h and optim/step_rules.h.
#include "optim/step_rules.h"

namespace lockstep {

/// Options of one RMSprop step. centered: divides by the standard deviation instead of the root mean square.
struct RmspropArgs {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered, maximize = false;
  double grad_scale = 1;
  bool operator==(const RmspropArgs&) const = default;
};
/// Options of one Adagrad step.
struct AdagradArgs {
  double lr, eps, weight_decay;  ///< lr after decay
  bool maximize = false;
  double grad_scale = 1;
  double first_lr = 0, lr_decay = 0;  ///< lr = first_lr / (1 + (step - 1) * lr_decay)
  bool operator==(const AdagradArgs&) const = default;
};

/// RMSprop. grad_average is undefined unless RMSprop is centered; momentum is undefined if args.momentum is 0.
using RmspropKernel = void(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average,
                           Tensor& momentum, Tensor& low, const RmspropArgs& args);
/// Adagrad. sum: the sum of the squares of all gradients so far.
using AdagradKernel = void(Tensor& p, const Tensor& grad, Tensor& sum, Tensor& low, const AdagradArgs& args);

namespace on_cpu {
/// The kernels for the CPU.
RmspropKernel rmsprop;
AdagradKernel adagrad;
}  // namespace on_cpu

namespace on_cuda {
/// The kernels for CUDA.
RmspropKernel rmsprop;
AdagradKernel adagrad;
}  // namespace on_cuda

namespace kernels {
/// The operations, each with the kernels of all devices.
extern const Op<RmspropKernel> rmsprop;
extern const Op<AdagradKernel> adagrad;
}  // namespace kernels

namespace optim_steps {

/// RMSprop. States: average of squares; if `centered`, average of gradients; if `moving`, momentum.
template <class A, bool centered, bool moving> struct Rmsprop {
  static constexpr int states = 1 + centered + moving;
  Gradient<A> gradient;
  A rate, alpha, take, eps, keep;

  LOCKSTEP_HD explicit Rmsprop(const RmspropArgs& args)
      : gradient(args, true),
        rate(A(args.lr)),
        alpha(A(args.alpha)),
        take(A(1 - args.alpha)),
        eps(A(args.eps)),
        keep(A(args.momentum)) {}
  template <class V> LOCKSTEP_HD void operator()(V& p, V g, V* s) const {
    g = gradient(g, p);
    s[0] = s[0] * alpha + g * g * take;
    V square = s[0];
    if constexpr (centered) {
      s[1] += (g - s[1]) * take;
      square -= s[1] * s[1];
    }
    const V direction = g / (Root<V>::of(square) + eps);
    if constexpr (moving) {
      s[1 + centered] = s[1 + centered] * keep + direction;
      p -= s[1 + centered] * rate;
    } else {
      p -= direction * rate;
    }
  }
};

/// Adagrad (Duchi et al., 2011). State: sum of squares.
template <class A> struct Adagrad {
  static constexpr int states = 1;
  Gradient<A> gradient;
  A rate, eps;

  LOCKSTEP_HD explicit Adagrad(const AdagradArgs& args) : gradient(args, true), rate(A(args.lr)), eps(A(args.eps)) {}
  template <class V> LOCKSTEP_HD void operator()(V& p, V g, V* s) const {
    g = gradient(g, p);
    s[0] += g * g;
    p -= g * rate / (Root<V>::of(s[0]) + eps);
  }
};

template <> LOCKSTEP_HD inline AdagradArgs of_step(const AdagradArgs& args, int64_t step) {
  AdagradArgs made = args;
  made.lr = args.first_lr / (1 + double(step - 1) * args.lr_decay);
  return made;
}

}  // namespace optim_steps

}  // namespace lockstep
