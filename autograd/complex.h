#pragma once
// The functions of tensor/complex.h for Variables, with gradients.
#include "autograd/ops.h"
#include "tensor/complex.h"

namespace lockstep {

#define Value Variable
#define LOCKSTEP_OPERATION(name, parameters) Value name parameters;
#include "tensor/complex.def"
#undef Value

}  // namespace lockstep
