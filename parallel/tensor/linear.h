#pragma once
// Linear maps whose weight is cut over ranks (Shoeybi et al., 2019). Two need one all-reduce forward and one backward:
//
//            x (every rank has it)                W1 cut by rows (outputs)        W2 cut by columns (inputs)
//            │                                    ┌────┐ rank 0                   ┌────┬────┐
//   f ───────┼── column: y_r = act(x W1_rᵀ)       ├────┤                          │ 0  │ 1  │
//            │      │ no communication            └────┘ rank 1                   └────┴────┘
//            │   row: z_r = y_r W2_rᵀ
//   g ───────┴── z = Σ z_r + b
//
// With `sequence` x and z are parts of the sequence (dim -2), f gathers them and g is a reduce-scatter: the same bytes,
// and what lies between two such pairs (norms, dropout, residuals) is computed and kept in parts.
#include "autograd/ops.h"
#include "parallel/tensor/functions.h"

namespace lockstep::tensor_parallel {

struct ColumnOptions {
  bool gather_output = false;  ///< the whole output on every rank
  bool sequence = false;       ///< x is a part of the sequence; the output is of all of it
  bool overlap = true;         ///< something is multiplied while something else is on its way
  int64_t chunks = 0;          ///< of rows, for that (overlap.h): 0 is automatic
};
/// activation(x w^T + bias) with this rank's rows of w and bias.
Variable column_linear(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                       const ColumnOptions& options, dist::ProcessGroup& group);

struct RowOptions {
  bool input_is_parallel = true;  ///< x is this rank's slice of the last dim; else it is whole
  bool sequence = false;          ///< the output is this rank's part of the sequence
  bool overlap = true;            ///< as above
  int64_t chunks = 0;
};
/// activation(x w^T + bias) with this rank's columns of w; bias is whole, and its gradient is the sum over the ranks.
Variable row_linear(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                    const RowOptions& options, dist::ProcessGroup& group);

}  // namespace lockstep::tensor_parallel
