#pragma once
// Arithmetic of collectives on raw memory. Elements need not be aligned (they lie in socket buffers and ring buffers).
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace lockstep::dist {

/// Reduction operators. For bool: sum and max are "or", product and min are "and". A mean of integers is truncated; a
/// mean of bool is an Error.
enum class ReduceOp : uint8_t { sum, mean, product, min, max };
/// "sum", "mean", "product", "min", "max".
const char* name_of(ReduceOp op);

/// target[i] = target[i] op source[i]. `mean` only adds; call divide() after the last term. Each f16 or bf16 result is
/// computed in f32 and rounded once. min and max propagate NaN. Error for a mean of bool.
void reduce_into(DType dtype, ReduceOp op, std::byte* target, const std::byte* source, int64_t count);
/// target[i] /= divisor. If the divisor is a power of two, multiplies by its inverse, which is exact. Error for bool.
void divide(DType dtype, std::byte* target, int64_t count, int64_t divisor);

}  // namespace lockstep::dist
