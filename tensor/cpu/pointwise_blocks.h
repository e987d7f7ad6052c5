#pragma once
// The table of block functions: one for each pointwise operation, PointwisePart (value or a gradient) and compute type.
// pointwise.cpp walks over tensors and calls them; pointwise_blocks.cpp fills the table (pointwise.def, functors.h).
#include "tensor/kernels.h"

namespace lockstep::on_cpu {

/// A block function computes n contiguous elements. n is a multiple of block_step, so it works on whole vectors only,
/// and every element is computed by the same instructions. `out` may be one of the inputs, else it must not overlap
/// them.
inline constexpr int64_t block_step = 32;
/// The type of a block function.
using BlockFn = void (*)(const void* const* in, void* out, int64_t n, const PointwiseArgs& args);

/// Compute types. Other dtypes are converted: f16 and bf16 to f32, i8 and u8 to i32; bool is computed as u8.
enum class ComputeType : uint8_t { f32, f64, i64, i32, u8, count };

/// The compute type of a dtype.
constexpr ComputeType compute_type(DType dtype) {
  using enum ComputeType;
  constexpr ComputeType types[] = {f32, f64, f32, f32, i64, i32, i32, i32, u8};
  return types[int(dtype)];
}

/// The functions that compute a block of elements of an operation, by part and compute type.
struct PointwiseEntry {
  BlockFn functions[3][int(ComputeType::count)] = {};  // [part][compute type]; null if there is none
  /// True if an element is expensive to compute. Then even small tensors are divided among threads.
  bool costly = false;
};

/// The entry of an operation.
const PointwiseEntry& pointwise_entry(PointwiseOp op);

}  // namespace lockstep::on_cpu
