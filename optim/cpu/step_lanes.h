#pragma once
// Optimizer steps (optim/step_rules.h) on the CPU's vectors. Internal to the tensor library.
#include <algorithm>

#include "optim/step_rules.h"
#include "tensor/cpu/lanes.h"

namespace lockstep {

/// Square roots of vectors of f32.
template <> struct optim_steps::Root<on_cpu::Lanes<float>> {
  static on_cpu::Lanes<float> of(on_cpu::Lanes<float> x) { return on_cpu::sqrt_lanes<float>(x); }  ///< of each lane
};
/// Square roots of vectors of f64.
template <> struct optim_steps::Root<on_cpu::Lanes<double>> {
  static on_cpu::Lanes<double> of(on_cpu::Lanes<double> x) { return on_cpu::sqrt_lanes<double>(x); }  ///< of each lane
};

namespace on_cpu {

inline constexpr int64_t step_grain = 1 << 14;  // fewest elements for which another thread pays off

/// Calls fn(p, gradient, state) for each vector, where state[k] is a vector of the k-th state. Stores p and the states.
/// step_vectors() is neither inlined nor cloned, so that whole vectors and the padded end run the same instructions.
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

/// Calls step_vectors() for the elements [first, last). Pads the last elements if they do not fill a vector.
template <int states, class A, class G, class Fn>
void step_range(A* p, const G* grad, A* const* state, int64_t first, int64_t last, const Fn& fn) {
  constexpr int w = lane_count<A>;
  const int64_t full_vectors = (last - first) / w, rest = (last - first) % w, end = last - rest;
  A* at[states + 1] = {};
  for (int k = 0; k < states; ++k) at[k] = state[k] + first;
  step_vectors<states>(p + first, grad + first, at, full_vectors, fn);
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

}  // namespace on_cpu
}  // namespace lockstep
