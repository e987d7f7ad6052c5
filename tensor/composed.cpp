#include "tensor/composed.h"

#include <cmath>

namespace lockstep {
namespace {
const Tensor& bare(const Tensor& x) { return x; }
}  // namespace
}  // namespace lockstep

#define Value Tensor
#define Indexed ValuesIndices
#include "tensor/composed.inc"
#undef Value
#undef Indexed
