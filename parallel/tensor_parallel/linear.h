#pragma once
// Linear maps whose weight is sharded over ranks (Shoeybi et al., 2019). A column and a row layer in sequence, as in an
// MLP or around attention, need one all-reduce forward (g) and one backward (f):
//
//          x, whole on every rank                W1 (hidden, in)         W2 (out, hidden)
//          │                                     cut by rows             cut by columns
//   f ─────┤ backward: all-reduce of dx
//          │                                     ┌────────┐              ┌────┬────┐
//   column_linear   y_r = act(x W1_rᵀ)           │ rank 0 │              │    │    │
//          │                                     ├────────┤              │ 0  │ 1  │
//   row_linear      z_r = y_r W2_rᵀ              │ rank 1 │              │    │    │
//          │                                     └────────┘              └────┴────┘
//   g ─────┤ forward: all-reduce of z_r
//          z = Σ_r z_r + b
//
// With `sequence` x and z are parts of the sequence (dim -2): f is an all-gather and g a reduce-scatter. Both
// together send as much as an all-reduce. Backward also gathers x once more, because each rank keeps only its part. The
// layers between two such pairs (norms, dropout, residuals) compute and keep only parts.
#include "autograd/ops.h"
#include "nn/attachment.h"
#include "parallel/tensor_parallel/functions.h"

namespace lockstep::tensor_parallel {

/// Options of column_linear().
struct ColumnOptions {
  bool gather_output = false;  ///< true: return the whole output on every rank
  /// True: x is this rank's part of the sequence, and the output covers the whole sequence.
  bool sequence = false;
  bool overlap = true;  ///< overlap communication with products
  int64_t chunks = 0;   ///< chunks of rows for the overlap (overlap.h); 0: automatic
};
/// `w` and `bias` hold this rank's rows. Returns activation(x wᵀ + bias): this rank's columns of the output, or all
/// columns with gather_output. Collective, and so is the backward. Error for shapes that do not fit. arithmetic: how to
/// multiply, in `training` or not (nn::Product); null: by linear().
Variable column_linear(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                       const ColumnOptions& options, dist::ProcessGroup& group, nn::Arithmetic* arithmetic = nullptr,
                       bool training = false);

/// Options of row_linear().
struct RowOptions {
  bool input_is_parallel = true;  ///< true: x is this rank's shard of the last dim; false: x is whole
  bool sequence = false;          ///< true: return this rank's part of the sequence
  bool overlap = true;            ///< true: overlap communication with products
  int64_t chunks = 0;             ///< chunks to overlap; see ColumnOptions
};
/// Returns activation(Σ x wᵀ + bias): the sum over the ranks of the products with each rank's columns of w. `bias` is
/// whole and added once, after the sum; its gradient is the same on all ranks. Collective, and so is the backward. The
/// last two arguments are those of column_linear().
Variable row_linear(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                    const RowOptions& options, dist::ProcessGroup& group, nn::Arithmetic* arithmetic = nullptr,
                    bool training = false);

}  // namespace lockstep::tensor_parallel
