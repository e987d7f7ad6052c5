#pragma once
// The table of block functions: one for each pointwise operation, part and type of computation. pointwise.cpp walks
// over tensors and calls them; pointwise_blocks.cpp fills the table from pointwise.def and functors.h.
#include "tensor/kernels.h"

namespace lockstep::on_cpu {

/// A block function runs n contiguous elements, n a multiple of block_step: whole vectors only, so that an element is
/// computed by the same instructions wherever it lies. `out` may be one of the inputs, else it does not overlap them.
inline constexpr int64_t block_step = 32;
using BlockFn = void (*)(const void* const* in, void* out, int64_t n, const PointwiseArgs& args);

/// Types of computation. The other dtypes are converted: f16, bf16 to f32, i8, u8 to i32; bool is computed as u8.
enum class ComputeType : uint8_t { f32, f64, i64, i32, u8, count };

constexpr ComputeType compute_type(DType dtype) {
  using enum ComputeType;
  constexpr ComputeType types[] = {f32, f64, f32, f32, i64, i32, i32, i32, u8};
  return types[int(dtype)];
}

struct PointwiseEntry {
  BlockFn functions[3][int(ComputeType::count)] = {};  // by part and type; empty where there is none
  bool costly = false;
};

const PointwiseEntry& pointwise_entry(PointwiseOp op);

}  // namespace lockstep::on_cpu
