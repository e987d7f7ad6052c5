#pragma once
// Functions on Tensor that pick elements; autograd/picking.h has the same names for Variable.
#include <vector>

#include "tensor/search.h"

namespace lockstep {

#define Value Tensor
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/picking.def"
#undef Value
/// The k-th smallest along a dim, from 1 on, and its place; NaN is larger than all.
ValuesIndices kthvalue(const Tensor& x, int64_t k, int64_t dim = -1, bool keepdim = false);

}  // namespace lockstep
