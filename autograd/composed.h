#pragma once
// The functions of tensor/composed.h on Variable, with gradients.
#include <initializer_list>

#include "autograd/ops.h"
#include "tensor/composed.h"

namespace lockstep {

#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/composed.def"
#undef Value
VariableIndices median(const Variable& x, int64_t dim, bool keepdim = false);
VariableIndices kthvalue(const Variable& x, int64_t k, int64_t dim = -1, bool keepdim = false);
std::vector<Variable> meshgrid(const std::vector<Variable>& vectors, bool xy = false);
/// Lists in braces are of tensors when all of them are.
inline std::vector<Tensor> meshgrid(std::initializer_list<Tensor> vectors, bool xy = false) {
  return meshgrid(std::vector<Tensor>(vectors), xy);
}

}  // namespace lockstep
