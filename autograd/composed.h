#pragma once
// The functions of tensor/composed.h for Variables, with gradients.
#include <initializer_list>

#include "autograd/ops.h"
#include "tensor/composed.h"

namespace lockstep {

/// Declares the functions that composed.def lists and describes, with Variables as arguments and results.
#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/composed.def"
#undef Value
/// The lower median along `dim`, with its position; NaN if there is a NaN.
VariableIndices median(const Variable& x, int64_t dim, bool keepdim = false);
/// The k-th smallest value along `dim` (k from 1), with its position; NaN is larger than all numbers.
VariableIndices kthvalue(const Variable& x, int64_t k, int64_t dim = -1, bool keepdim = false);
/// One grid of coordinates per vector. `xy` swaps the first two dims of every grid, like PyTorch's indexing="xy".
std::vector<Variable> meshgrid(const std::vector<Variable>& vectors, bool xy = false);
/// meshgrid() of a braced list of tensors. Records nothing, so the result has no gradient.
inline std::vector<Tensor> meshgrid(std::initializer_list<Tensor> vectors, bool xy = false) {
  return meshgrid(std::vector<Tensor>(vectors), xy);
}

}  // namespace lockstep
