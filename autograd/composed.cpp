#include "autograd/composed.h"

#include <cmath>

namespace lockstep {
namespace {
const Tensor& bare(const Variable& x) { return x.tensor(); }
}  // namespace
}  // namespace lockstep

#define Value Variable
#define Indexed VariableIndices
#include "tensor/composed.inc"
#undef Value
#undef Indexed
