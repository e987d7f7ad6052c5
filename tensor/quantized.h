#pragma once
// Weights in 8 or 4 bits: whole numbers (codes), and scales to multiply them with. docs/quantisation.md.
//
//   row8     a scale (f32) for each row           code -127 .. 127, scale = max|w| / 127
//   group8   a scale for 32 numbers of it         the same
//   group4   the same                             code -7 .. 7, scale = max|w| / 7; two in a byte
//
// Scales of groups are f16, and f32 where f16 would round one of the weight's by more than 1 / 512 of it (below 1e-5 it
// has few digits, below 6e-8 none; above 65504 it is infinite).
//
// A quantised weight stands where a weight does, in linear() and matmul(x, w) of Tensor and Variable, as a handle: a
// tensor of its shape that has no memory, and leads to the codes. Whoever would read it gets an Error.
#include <string>

#include "tensor/ops.h"

namespace lockstep {

enum class QuantFormat : uint8_t { row8, group8, group4 };
std::string_view name_of(QuantFormat format);

inline constexpr int64_t quant_group = 32;  ///< numbers of a row that share a scale; the last may be fewer

/// A matrix (out, in).
struct Quantized {
  QuantFormat format = QuantFormat::group8;
  Tensor codes;   ///< i8 (out, in); of group4 u8 (out, 16 groups): byte i of a group has code i + 8 and code i + 16 + 8
  Tensor scales;  ///< f32 (out) of row8, else f16 or f32 (out, groups)
  int64_t out = 0, in = 0;
};

/// The nearest codes (half to even) of w (out, in), f32, f64, f16 or bf16.
Quantized quantize(const Tensor& w, QuantFormat format);
/// code * scale, rounded once.
Tensor dequantize(const Quantized& w, DType dtype = f32);
/// activation(x w^T + bias), x (..., in). In f32; f16 and bf16 are rounded once.
Tensor linear(const Tensor& x, const Quantized& w, const Tensor& bias = {}, const QuantMatmulArgs& args = {});

/// What a handle leads to.
struct QuantizedHandle {
  Quantized weight;
  QuantMatmulArgs how;
};
Tensor handle_of(const Quantized& weight, const QuantMatmulArgs& how = {}, DType dtype = f32);
/// Null for every other tensor.
const QuantizedHandle* quantized_of(const Tensor& tensor);

}  // namespace lockstep
