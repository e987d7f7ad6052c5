#include "autograd/picking.h"

#include "autograd/autocast.h"

namespace lockstep {
namespace {
std::optional<DType> widest_by_autocast(const Variable& a, const Variable& b) { return Autocast::common({&a, &b}); }
}  // namespace
}  // namespace lockstep

#define Value Variable
#define Indexed VariableIndices
#include "tensor/picking.inc"
#undef Value
#undef Indexed
