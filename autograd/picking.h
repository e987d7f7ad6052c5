#pragma once
// The functions of tensor/picking.h on Variable, with gradients.
#include "autograd/ops.h"
#include "tensor/picking.h"

namespace lockstep {

#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/picking.def"
#undef Value
VariableIndices kthvalue(const Variable& x, int64_t k, int64_t dim = -1, bool keepdim = false);

}  // namespace lockstep
