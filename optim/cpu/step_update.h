#pragma once
// Runs an update rule (optim/step_rules.h) over flat tensors, in one pass over memory. The same machine code computes
// every element, wherever it lies in the tensor, so the shards of a tensor get the same bits as the whole tensor. Files
// that include it are compiled without fused multiply-add.
#include "optim/cpu/step_lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/tensor.h"

namespace lockstep::on_cpu {

/// Runs one optimizer step on all elements. make(A()) returns the update rule, computed in type A, the dtype of p
/// (f32 or f64). With an f32 p, the gradient may also be f16 or bf16.
template <int states, class Make>
void update_flat(const char* op, Tensor& p, const Tensor& grad, Tensor* const (&state)[states + 1], Tensor* low,
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

}  // namespace lockstep::on_cpu
