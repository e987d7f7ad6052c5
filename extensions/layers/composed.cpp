// The functions of composed.inc for Tensor. See composed.h.
#include "extensions/layers/composed.h"

#include <cmath>

namespace lockstep {
namespace {
const Tensor& bare(const Tensor& x) { return x; }
std::optional<DType> widest_by_autocast(const Tensor&, const Tensor&) { return {}; }
}  // namespace
}  // namespace lockstep

#define Value Tensor
#define Indexed ValuesIndices
#include "extensions/layers/composed.inc"
#undef Value
#undef Indexed
