#pragma once
// Linear layers whose weight is cut over the ranks of a group (Shoeybi et al., 2019). Two of them need one all-reduce
// forward and one backward:
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
#include "nn/linear.h"
#include "parallel/tensor/functions.h"
#include "parallel/tensor/slices.h"

namespace lockstep::tensor_parallel {

struct ColumnOptions {
  bool gather_output = false;  ///< the whole output on every rank
  bool sequence = false;       ///< x is a part of the sequence; the output is of all of it
  bool overlap = true;         ///< the sum of x's gradient is under way while the weight's is computed. Same bits
};
/// activation(x w^T + bias) with this rank's rows of w and bias.
Variable column_linear(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                       const ColumnOptions& options, dist::ProcessGroup& group);

struct RowOptions {
  bool input_is_parallel = true;  ///< x is this rank's slice of the last dim; else it is whole
  bool sequence = false;          ///< the output is this rank's part of the sequence
};
/// activation(x w^T + bias) with this rank's columns of w; bias is whole, and its gradient is the sum over the ranks.
Variable row_linear(const Variable& x, const Variable& w, const Variable& bias, Activation activation,
                    const RowOptions& options, dist::ProcessGroup& group);

/// nn::Linear with its outputs cut. Starts with the weights that nn::Linear would have here.
struct ColumnParallelLinear : nn::Layer<ColumnParallelLinear> {
  struct Options {
    int64_t in, out;
    bool bias = true;
    ColumnOptions column = {};
  };
  ColumnParallelLinear(const Options& options, dist::ProcessGroup& group);
  Variable forward(const Variable& x) { return forward(x, Activation::none); }
  Variable forward(const Variable& x, Activation activation) {
    return column_linear(x, weight, bias, activation, o.column, group);
  }
  void fields(nn::Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Options o;
  dist::ProcessGroup& group;
  Variable weight, bias;
};

/// nn::Linear with its inputs cut.
struct RowParallelLinear : nn::Layer<RowParallelLinear> {
  struct Options {
    int64_t in, out;
    bool bias = true;
    RowOptions row = {};
  };
  RowParallelLinear(const Options& options, dist::ProcessGroup& group);
  Variable forward(const Variable& x) { return forward(x, Activation::none); }
  Variable forward(const Variable& x, Activation activation) {
    return row_linear(x, weight, bias, activation, o.row, group);
  }
  void fields(nn::Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Options o;
  dist::ProcessGroup& group;
  Variable weight, bias;
};

}  // namespace lockstep::tensor_parallel
