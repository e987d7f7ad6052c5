#pragma once
// Update rules of the optimizers for one element, or for one SIMD vector of elements on the CPU: PyTorch's formulas in
// PyTorch's order, one source for all devices. A rule computes in the type A, float or double, and is called with the
// parameter p, its gradient g and its states s. Internal.
#include <cmath>

#include "optim/step_kernels.h"
#include "tensor/host_device.h"

namespace lockstep::optim_steps {

/// Square root of a number. The CPU's vector types specialise Root.
template <class V> struct Root {
  LOCKSTEP_HD static V of(V x) { return std::sqrt(x); }
};

/// Preprocesses a gradient: scale, sign (maximize), and L2 weight decay.
template <class A> struct Gradient {
  A scale, decay;
  bool l2;

  template <class Args>
  LOCKSTEP_HD Gradient(const Args& args, bool l2)
      : scale(A(args.maximize ? -args.grad_scale : args.grad_scale)),
        decay(A(args.weight_decay)),
        l2(l2 && args.weight_decay != 0) {}
  template <class V> LOCKSTEP_HD V operator()(V g, const V& p) const {
    g *= scale;
    if (l2) g += p * decay;
    return g;
  }
};

/// Adam and AdamW (Kingma and Ba, 2015; Loshchilov and Hutter, 2019). States: m, v, and with amsgrad the maximum of v.
template <class A, bool amsgrad> struct Adam {
  static constexpr int states = amsgrad ? 3 : 2;
  Gradient<A> gradient;
  A keep, weight1, beta2, weight2, eps, rate, root_of_bias;
  bool decoupled;

  LOCKSTEP_HD explicit Adam(const AdamArgs& args)
      : gradient(args, !args.decoupled),
        keep(A(1 - args.lr * args.weight_decay)),
        weight1(A(1 - args.beta1)),
        beta2(A(args.beta2)),
        weight2(A(1 - args.beta2)),
        eps(A(args.eps)),
        rate(A(args.lr / args.bias1)),
        root_of_bias(A(1 / std::sqrt(args.bias2))),
        decoupled(args.decoupled && args.weight_decay != 0) {}
  template <class V> LOCKSTEP_HD void operator()(V& p, V g, V* s) const {
    g = gradient(g, p);
    if (decoupled) p *= keep;
    s[0] += (g - s[0]) * weight1;
    s[1] = s[1] * beta2 + g * g * weight2;
    V second = s[1];
    if constexpr (amsgrad) {                   // maximum of v so far
      s[2] = choose(s[1] < s[2], s[2], s[1]);  // NaN in v propagates
      second = s[2];
    }
    p -= s[0] * rate / (Root<V>::of(second) * root_of_bias + eps);
  }
};

/// SGD. State: momentum, if `moving`.
template <class A, bool moving> struct Sgd {
  static constexpr int states = moving;
  Gradient<A> gradient;
  A rate, keep, take;
  bool first, nesterov;

  LOCKSTEP_HD explicit Sgd(const SgdArgs& args)
      : gradient(args, true),
        rate(A(args.lr)),
        keep(A(args.momentum)),
        take(A(1 - args.dampening)),
        first(args.first),
        nesterov(args.nesterov) {}
  template <class V> LOCKSTEP_HD void operator()(V& p, V g, [[maybe_unused]] V* s) const {
    g = gradient(g, p);
    if constexpr (moving) {
      s[0] = first ? g : s[0] * keep + g * take;
      g = nesterov ? g + s[0] * keep : s[0];
    }
    p -= g * rate;
  }
};

/// Returns the options after recomputing the values that depend on the step number (bias corrections, learning rate
/// decay) for `step`. A device needs this if it has skipped some of the steps that the host has counted.
template <class Args> LOCKSTEP_HD inline Args of_step(const Args& args, int64_t /*step*/) { return args; }
template <> LOCKSTEP_HD inline AdamArgs of_step(const AdamArgs& args, int64_t step) {
  AdamArgs made = args;
  if (!args.corrects) return made;
  made.bias1 = 1 - std::pow(args.beta1, double(step));
  made.bias2 = 1 - std::pow(args.beta2, double(step));
  return made;
}
template <> LOCKSTEP_HD inline SgdArgs of_step(const SgdArgs& args, int64_t step) {
  SgdArgs made = args;
  made.first |= step == 1;
  return made;
}

}  // namespace lockstep::optim_steps
