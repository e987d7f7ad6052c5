// The functions of composed.inc for Tensor and for Variable. See composed.h.
#include "extensions/layers/composed.h"

#include <cmath>

#include "autograd/autocast.h"
#include "autograd/recorded.h"

namespace lockstep {
namespace {
std::optional<DType> widest_by_autocast(const Tensor&, const Tensor&) { return {}; }
std::optional<DType> widest_by_autocast(const Variable& a, const Variable& b) { return Autocast::common({&a, &b}); }
}  // namespace
}  // namespace lockstep

#define Value Tensor
#define Indexed ValuesIndices
#include "extensions/layers/composed.inc"
#undef Value
#undef Indexed
#define Value Variable
#define Indexed VariableIndices
#include "extensions/layers/composed.inc"
#undef Value
#undef Indexed
