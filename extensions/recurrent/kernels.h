#pragma once
// The kernels of recurrent layers. CPU only; f32 and f64.
#include "extensions/recurrent/operation.h"
#include "tensor/op.h"

namespace lockstep {

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
