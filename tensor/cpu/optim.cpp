// Optimizer steps on flat tensors: one pass over memory, PyTorch's formulas in PyTorch's order. Every element runs
// through the same machine code wherever it lies, so a tensor cut into shards at any place gives the same bits.
#include <vector>

#include "tensor/cpu/cpu_kernels.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"

namespace lockstep {
namespace {

using namespace on_cpu;

constexpr int64_t grain = 1 << 14;  // elements worth a thread

/// How many states a step was given (their array has one element more, as there may be none).
template <class S>
inline constexpr int states_in = int(std::extent_v<std::remove_reference_t<S>>) - 1;

/// Calls fn(p, g, state) on vectors, where state[k] is a vector of the k-th state, and stores p and the states again.
/// Neither inlined nor cloned, so that whole vectors and the padded end run the very same instructions.
template <int states, class A, class G, class Fn>
[[gnu::noinline, gnu::noclone]] void step_vectors(A* p, const G* grad, A* const* state, int64_t vectors, const Fn& fn) {
  constexpr Full<A> full;
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t i = v * lane_count<A>;
    Lanes<A> value = load(p + i, full), s[states + 1];
    for (int k = 0; k < states; ++k) s[k] = load(state[k] + i, full);
    fn(value, Lanes<A>(load(grad + i, full)), s);
    store(p + i, value, full);
    for (int k = 0; k < states; ++k) store(state[k] + i, s[k], full);
  }
}

template <int states, class A, class G, class Fn>
void step_range(A* p, const G* grad, A* const* state, int64_t first, int64_t last, const Fn& fn) {
  constexpr int w = lane_count<A>;
  const int64_t whole = (last - first) / w, rest = (last - first) % w, end = last - rest;
  A* at[states + 1] = {};
  for (int k = 0; k < states; ++k) at[k] = state[k] + first;
  step_vectors<states>(p + first, grad + first, at, whole, fn);
  if (rest == 0) return;
  alignas(64) A value[w] = {}, held[states + 1][w] = {};
  alignas(64) G gradient[w] = {};
  std::copy(p + end, p + last, value);
  std::copy(grad + end, grad + last, gradient);
  for (int k = 0; k < states; ++k) at[k] = std::copy(state[k] + end, state[k] + last, held[k]) - rest;
  step_vectors<states>(value, gradient, at, 1, fn);
  std::copy(value, value + rest, p + end);
  for (int k = 0; k < states; ++k) std::copy(held[k], held[k] + rest, state[k] + end);
}

/// Runs one step over all elements. make(A()) gives the step in that type: f32 or f64; the gradient may also be 16 bit.
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
      parallel_for((n + lane_count<A> - 1) / lane_count<A>, grain / lane_count<A>, [&](int64_t first, int64_t last) {
        constexpr int64_t piece = 4096;  // what is rounded to 16 bits is still in cache
        last = std::min(last * lane_count<A>, n);
        for (int64_t i = first * lane_count<A>; i < last; i += piece) {
          const int64_t end = std::min(i + piece, last);
          step_range<states>(values, gradient, at, i, end, fn);
          copy_low(i, end);
        }
      });
    };
    if constexpr (std::is_same_v<A, float>)
      dispatch<float, Half, BFloat16>(grad.dtype(), op, run);
    else
      dispatch<double>(grad.dtype(), op, run);
  });
}

}  // namespace

void on_cpu::adam(Tensor& p, const Tensor& grad, Tensor& m, Tensor& v, Tensor& v_max, Tensor& low,
                  const AdamArgs& args) {
  const auto make = [&](auto a) {
    using A = decltype(a);
    const A scale = A(args.maximize ? -args.grad_scale : args.grad_scale);
    const A decay = A(args.weight_decay), keep = A(1 - args.lr * args.weight_decay);
    const A weight1 = A(1 - args.beta1), beta2 = A(args.beta2), weight2 = A(1 - args.beta2), eps = A(args.eps);
    const A rate = A(args.lr / args.bias1), root = A(1 / std::sqrt(args.bias2));
    const bool l2 = !args.decoupled && args.weight_decay != 0, decoupled = args.decoupled && args.weight_decay != 0;
    return [=](Lanes<A>& p, Lanes<A> g, auto& s) {
      g *= scale;
      if (l2) g += p * decay;
      if (decoupled) p *= keep;
      s[0] += (g - s[0]) * weight1;
      s[1] = s[1] * beta2 + g * g * weight2;
      Lanes<A> second = s[1];
      if constexpr (states_in<decltype(s)> == 3) {  // amsgrad: the largest so far
        s[2] = s[1] < s[2] ? s[2] : s[1];  // NaN in v passes on
        second = s[2];
      }
      p -= s[0] * rate / (sqrt_lanes<A>(second) * root + eps);
    };
  };
  Tensor* const moments[] = {&m, &v, nullptr};
  Tensor* const with_max[] = {&m, &v, &v_max, nullptr};
  if (v_max.defined())
    update<3>("adam", p, grad, with_max, &low, make);
  else
    update<2>("adam", p, grad, moments, &low, make);
}

void on_cpu::sgd(Tensor& p, const Tensor& grad, Tensor& momentum, Tensor& low, const SgdArgs& args) {
  const auto make = [&](auto a) {
    using A = decltype(a);
    const A scale = A(args.maximize ? -args.grad_scale : args.grad_scale), decay = A(args.weight_decay),
            rate = A(args.lr);
    const A keep = A(args.momentum), take = A(1 - args.dampening);
    const bool l2 = args.weight_decay != 0, first = args.first, nesterov = args.nesterov;
    return [=](Lanes<A>& p, Lanes<A> g, auto& s) {
      g *= scale;
      if (l2) g += p * decay;
      if constexpr (states_in<decltype(s)> == 1) {
        s[0] = first ? g : s[0] * keep + g * take;
        g = nesterov ? g + s[0] * keep : s[0];
      }
      p -= g * rate;
    };
  };
  Tensor* const none[] = {nullptr};
  Tensor* const with_momentum[] = {&momentum, nullptr};
  if (args.momentum != 0)
    update<1>("sgd", p, grad, with_momentum, &low, make);
  else
    update<0>("sgd", p, grad, none, &low, make);
}

void on_cpu::rmsprop(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average, Tensor& momentum,
                     const RmspropArgs& args) {
  const auto run = [&]<bool centered, bool moving>() {
    const auto make = [&](auto a) {
      using A = decltype(a);
      const A scale = A(args.maximize ? -args.grad_scale : args.grad_scale), decay = A(args.weight_decay),
              rate = A(args.lr);
      const A alpha = A(args.alpha), take = A(1 - args.alpha), eps = A(args.eps), keep = A(args.momentum);
      const bool l2 = args.weight_decay != 0;
      return [=](Lanes<A>& p, Lanes<A> g, auto& s) {
        g *= scale;
        if (l2) g += p * decay;
        s[0] = s[0] * alpha + g * g * take;
        Lanes<A> square = s[0];
        if constexpr (centered) {
          s[1] += (g - s[1]) * take;
          square -= s[1] * s[1];
        }
        const Lanes<A> direction = g / (sqrt_lanes<A>(square) + eps);
        if constexpr (moving) {
          s[1 + centered] = s[1 + centered] * keep + direction;
          p -= s[1 + centered] * rate;
        } else {
          p -= direction * rate;
        }
      };
    };
    Tensor* const state[] = {&square_average, centered ? &grad_average : &momentum, &momentum, nullptr};
    Tensor* used[2 + centered + moving] = {};
    std::copy(state, state + 1 + centered + moving, used);
    update<1 + centered + moving>("rmsprop", p, grad, used, nullptr, make);
  };
  const bool moving = args.momentum != 0;
  if (args.centered)
    moving ? run.operator()<true, true>() : run.operator()<true, false>();
  else
    moving ? run.operator()<false, true>() : run.operator()<false, false>();
}

void on_cpu::adagrad(Tensor& p, const Tensor& grad, Tensor& sum, const AdagradArgs& args) {
  const auto make = [&](auto a) {
    using A = decltype(a);
    const A scale = A(args.maximize ? -args.grad_scale : args.grad_scale), decay = A(args.weight_decay);
    const A rate = A(args.lr), eps = A(args.eps);
    const bool l2 = args.weight_decay != 0;
    return [=](Lanes<A>& p, Lanes<A> g, auto& s) {
      g *= scale;
      if (l2) g += p * decay;
      s[0] += g * g;
      p -= g * rate / (sqrt_lanes<A>(s[0]) + eps);
    };
  };
  Tensor* const state[] = {&sum, nullptr};
  update<1>("adagrad", p, grad, state, nullptr, make);
}

void on_cpu::lion(Tensor& p, const Tensor& grad, Tensor& m, const LionArgs& args) {
  const auto make = [&](auto a) {
    using A = decltype(a);
    const A scale = A(args.maximize ? -args.grad_scale : args.grad_scale), rate = A(args.lr);
    const A keep = A(1 - args.lr * args.weight_decay);
    const A beta1 = A(args.beta1), weight1 = A(1 - args.beta1), beta2 = A(args.beta2), weight2 = A(1 - args.beta2);
    return [=](Lanes<A>& p, Lanes<A> g, auto& s) {
      g *= scale;
      const Lanes<A> blend = s[0] * beta1 + g * weight1;
      const Lanes<A> up = splat(rate), none = blend * A(0);  // 0, and NaN where blend is NaN
      p = p * keep - (blend > 0 ? up : blend < 0 ? -up : none);
      s[0] = s[0] * beta2 + g * weight2;
    };
  };
  Tensor* const state[] = {&m, nullptr};
  update<1>("lion", p, grad, state, nullptr, make);
}

}  // namespace lockstep
