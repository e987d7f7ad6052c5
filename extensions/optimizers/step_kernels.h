#pragma once
// The kernels of RMSprop, Adagrad and Lion, and their rules for one element or one SIMD vector of elements, as in
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

/// Options of one Lion step.
struct LionArgs {
  double lr, beta1, beta2, weight_decay;
  bool maximize = false;
  double grad_scale = 1;
  bool operator==(const LionArgs&) const = default;
};

/// RMSprop. grad_average is undefined unless RMSprop is centered; momentum is undefined if args.momentum is 0.
using RmspropKernel = void(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average,
                           Tensor& momentum, Tensor& low, const RmspropArgs& args);
/// Adagrad. sum: the sum of the squares of all gradients so far.
using AdagradKernel = void(Tensor& p, const Tensor& grad, Tensor& sum, Tensor& low, const AdagradArgs& args);
/// Lion (Chen et al., 2023). m: momentum.
using LionKernel = void(Tensor& p, const Tensor& grad, Tensor& m, Tensor& low, const LionArgs& args);

namespace on_cpu {
/// The kernels for the CPU.
RmspropKernel rmsprop;
AdagradKernel adagrad;
LionKernel lion;
}  // namespace on_cpu

namespace on_cuda {
/// The kernels for CUDA.
RmspropKernel rmsprop;
AdagradKernel adagrad;
LionKernel lion;
}  // namespace on_cuda

namespace kernels {
/// The operations, each with the kernels of all devices.
extern const Op<RmspropKernel> rmsprop;
extern const Op<AdagradKernel> adagrad;
extern const Op<LionKernel> lion;
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

/// Lion (Chen et al., 2023). State: momentum.
template <class A> struct Lion {
  static constexpr int states = 1;
  Gradient<A> gradient;
  A rate, keep, beta1, weight1, beta2, weight2;

  LOCKSTEP_HD explicit Lion(const LionArgs& args)
      : gradient(args, false),
        rate(A(args.lr)),
        keep(A(1 - args.lr * args.weight_decay)),
        beta1(A(args.beta1)),
        weight1(A(1 - args.beta1)),
        beta2(A(args.beta2)),
        weight2(A(1 - args.beta2)) {}
  template <class V> LOCKSTEP_HD void operator()(V& p, V g, V* s) const {
    g = gradient(g, p);
    const V blend = s[0] * beta1 + g * weight1;
    const V up = V{} + rate, none = blend * A(0);  // 0, or NaN where blend is NaN
    p = p * keep - choose(blend > A(0), up, choose(blend < A(0), -up, none));
    s[0] = s[0] * beta2 + g * weight2;
  }
};

template <> LOCKSTEP_HD inline AdagradArgs of_step(const AdagradArgs& args, int64_t step) {
  AdagradArgs made = args;
  made.lr = args.first_lr / (1 + double(step - 1) * args.lr_decay);
  return made;
}

}  // namespace optim_steps

}  // namespace lockstep
