#pragma once
// The kernels of recurrent layers. CPU only; f32 and f64.
#include <algorithm>

#include "extensions/recurrent/operation.h"
#include "tensor/op.h"

namespace lockstep {

/// The rows of one time step; each row is a sequence of the batch. The first `shared` rows continue sequences of the
/// step before, and the other rows begin with the initial states.
struct StepRows {
  int64_t at, rows;                ///< this step's first row and number of rows
  int64_t before = 0, shared = 0;  ///< the previous step's first row; number of sequences in both steps
};
/// The time steps in the order of computation.
inline std::vector<StepRows> steps_of(const RecurrentArgs& args) {
  std::vector<StepRows> all;
  int64_t at = 0;
  for (const int64_t n : args.batch) all.push_back({at, n}), at += n;
  if (args.reverse) std::reverse(all.begin(), all.end());
  for (size_t i = 1; i < all.size(); ++i) {
    all[i].before = all[i - 1].at;
    all[i].shared = std::min(all[i].rows, all[i - 1].rows);
  }
  return all;
}

/// B sequences, H hidden size, P size of the state that is fed back (H without a projection), G gates (gates_of()). The
/// rows of all time steps follow each other, see RecurrentArgs.
///
///   w (G H, P), w_project (P, H) or undefined   the weights
///   gates (rows, G H)                           on entry input products and biases, on return the activated gates
///   fresh (rows, H), gru only                   on entry the candidate gate's recurrent bias, on return h w + bias
///   cells (rows, H), lstm only                  on return the cell states
///   h (B, P), c (B, H)                          on entry the initial states, on return the final ones
///   out (rows, P)                               on return the hidden states; may be `gates` for cells with one gate
using Recurrent = void(const RecurrentArgs& args, const Tensor& w, const Tensor& w_project, Tensor& gates,
                       Tensor& fresh, Tensor& cells, Tensor& h, Tensor& c, Tensor& out);
/// Gradient of Recurrent. grad (rows, P): the gradient of out on entry; on return also the gradient from later steps.
/// grad_h and grad_c: gradients of the final states on entry, of the initial states on return. grad_gates (rows,
/// G H): gradient of the gates before their activations. grad_hidden: gradient of the product of w and the previous
/// state; for all cells but gru it equals grad_gates, and is the same tensor.
using RecurrentGrad = void(const RecurrentArgs& args, const Tensor& w, const Tensor& w_project, const Tensor& gates,
                           const Tensor& fresh, const Tensor& cells, const Tensor& out, const Tensor& h,
                           const Tensor& c, Tensor& grad, Tensor& grad_h, Tensor& grad_c, Tensor& grad_gates,
                           Tensor& grad_hidden);

namespace on_cpu {
Recurrent recurrent;
RecurrentGrad recurrent_grad;
}  // namespace on_cpu

}  // namespace lockstep
