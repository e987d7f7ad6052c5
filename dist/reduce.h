#pragma once
// Arithmetic of collectives on raw memory. Elements need not be aligned (they lie in socket buffers and ring buffers).
#include <cstddef>
#include <cstdint>

#include "dist/collective.h"
#include "tensor/dtype.h"

namespace lockstep::dist {

/// target[i] = target[i] op source[i]. `mean` only adds; call divide() after the last term. Each f16 or bf16 result is
/// computed in f32 and rounded once. min and max propagate NaN. Error for a mean of bool.
void reduce_into(DType dtype, ReduceOp op, std::byte* target, const std::byte* source, int64_t count);
/// target[i] /= divisor. If the divisor is a power of two, multiplies by its inverse, which is exact. Error for bool.
void divide(DType dtype, std::byte* target, int64_t count, int64_t divisor);

}  // namespace lockstep::dist
