#pragma once
// Quantized weights in 8 or 4 bits: integer codes, and scales that they are multiplied with. See README.md.
//
//   format   one scale per        code            scale
//   row8     row (f32)            -127 .. 127     max|w| / 127
//   group8   32 numbers of a row  -127 .. 127     max|w| / 127
//   group4   32 numbers of a row  -7 .. 7         max|w| / 7; two codes per byte
//
// Group scales are f16, unless f16 would change a scale of the weight by more than 1/512; then all its scales are f32.
// (f16 loses digits below 1e-5, is 0 below 6e-8 and infinite above 65504.)
//
// A quantized weight is passed to linear() and matmul(x, w) of Tensor and Variable as a handle: a tensor that has the
// weight's shape and refers to its codes, but has no memory (tensor/stored_matrix.h).
#include <string_view>

#include "tensor/ops.h"

namespace lockstep {

/// Format of codes and scales, see the table at the top of this file.
enum class QuantFormat : uint8_t { row8, group8, group4 };
/// "row8", "group8" or "group4".
std::string_view name_of(QuantFormat format);

inline constexpr int64_t quant_group = 32;  ///< numbers of a row that share a scale; the last group may be shorter

/// How x is multiplied by a quantized weight. By default the weight is decoded and x is not quantized. With `dynamic`
/// (format row8 only), each row of x is quantized to 8 bits too, and codes are multiplied as integers. Elements of x
/// with a magnitude of at least `threshold` are then not quantized, as in LLM.int8(). Threshold 0 quantizes all.
struct QuantMatmulArgs {
  bool dynamic = false;
  double threshold = 0;
  /// If one element of a column of x is unquantized, true makes the whole column unquantized, as in bitsandbytes. The
  /// result of a row then depends on the other rows.
  bool full_columns = false;
  Activation activation = Activation::none;
};

/// A quantized matrix (out, in).
struct Quantized {
  QuantFormat format = QuantFormat::group8;
  /// row8, group8: i8 (out, in). group4: u8 (out, 16 * number of groups). Byte i of a group's 16 bytes holds
  /// code[i] + 8 in its low four bits and code[i + 16] + 8 in its high four bits.
  Tensor codes;
  Tensor scales;  ///< row8: f32 (out); otherwise f16 or f32 (out, groups)
  int64_t out = 0, in = 0;
};

/// Quantizes w (out, in) in f32, f64, f16 or bf16 to the nearest codes (ties to even). Error for infinity or NaN.
Quantized quantize(const Tensor& w, QuantFormat format);
/// Decodes a matrix (out, in): each element is code * scale, rounded to f32 and then to dtype.
Tensor dequantize(const Quantized& w, DType dtype = f32);
/// activation(x w^T + bias) for x (..., in), computed in f32; f16 and bf16 results are rounded once.
Tensor linear(const Tensor& x, const Quantized& w, const Tensor& bias = {}, const QuantMatmulArgs& args = {});

/// Makes a handle: a tensor that stands for the weight, with shape (out, in) and the given dtype, but without memory.
Tensor handle_of(const Quantized& weight, const QuantMatmulArgs& matmul_args = {}, DType dtype = f32);

}  // namespace lockstep
