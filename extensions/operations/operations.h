#pragma once
// Operations and losses that few models need: #include <lockstep/operations.h>.
#include <initializer_list>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "extensions/operations/losses.h"

namespace lockstep {

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "extensions/operations/operations.def"
#undef Value
#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "extensions/operations/operations.def"
#undef Value

/// i64 (..., classes): 1 at the index and 0 elsewhere. classes -1: the largest index + 1, which waits for the device.
Tensor one_hot(const Tensor& index, int64_t classes = -1);
/// Product; its gradient holds where elements are 0, too.
Variable prod(const Variable& x, const Dims& dims = {}, bool keepdim = false);
/// einsum() of a braced list of tensors, e.g. einsum("ij,jk->ik", {a, b}). Records nothing.
inline Tensor einsum(const std::string& equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::vector<Tensor>(operands));
}

}  // namespace lockstep
