#pragma once
// Arithmetic of collectives on raw memory. Elements may lie at any address (they come out of sockets and rings).
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace lockstep::dist {

/// For bool: sum and max are "or", product and min "and"; mean of integers is truncated, mean of bool is an Error.
enum class ReduceOp : uint8_t { sum, mean, product, min, max };
const char* name_of(ReduceOp op);

/// target[i] = target[i] op source[i]; mean adds. f16 and bf16 are computed in f32 and rounded once. NaN wins in min
/// and max.
void reduce_into(DType dtype, ReduceOp op, std::byte* target, const std::byte* source, int64_t count);
/// target[i] /= divisor; multiplies by the exact inverse when divisor is a power of two.
void divide(DType dtype, std::byte* target, int64_t count, int64_t divisor);

}  // namespace lockstep::dist
