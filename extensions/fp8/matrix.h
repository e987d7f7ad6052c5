#pragma once
// Matrices in 8-bit floats (float8.h) with one scale each: value = code * scale_inv. See README.md.
#include "extensions/fp8/float8.h"
#include "tensor/tensor.h"

namespace lockstep {

/// "e4m3" or "e5m2".
std::string_view name_of(Fp8Format format);

/// Options of cast_fp8().
struct Fp8CastArgs {
  Fp8Format format = Fp8Format::e4m3;
  Tensor scale;  ///< f32 of one element on x's device; the codes encode x * scale
  /// Optional f32 tensor of one element, which becomes the larger of its value and the largest |x|, ignoring NaN.
  Tensor amax = {};
  /// The results to make. straight: the codes; turned: the transpose of the codes.
  bool straight = true, turned = false;
};
/// Results of cast_fp8(), undefined if not asked for.
struct Fp8Cast {
  Tensor codes, turned;  ///< u8 (R, C), and the transpose (C, R)
};
/// Encodes x (R, C), f32, f16 or bf16: each code is the nearest one (ties to even); values beyond the range saturate.
Fp8Cast cast_fp8(const Tensor& x, const Fp8CastArgs& args);
/// The values of codes, not multiplied by a scale. `dtype` is f32 or bf16, and the result is exact.
Tensor read_fp8(const Tensor& codes, Fp8Format format, DType dtype = f32);

/// A matrix in 8-bit floats with one scale.
struct Fp8Matrix {
  Tensor codes;  ///< u8 (rows, K), contiguous
  Fp8Format format;
  Tensor scale_inv;  ///< f32 of one element, on the same device
};
/// a b^T + bias, for a (M, K) and b (N, K): (M, N). Summed in f32, multiplied by both scales, plus bias (N) in the
/// result's dtype (f32, f16 or bf16), rounded once. CUDA devices of compute capability 8.9 or more use cuBLASLt if all
/// sizes are multiples of 16 and at least one operand is e4m3; otherwise the product is computed in bf16, which holds
/// the codes exactly.
Tensor matmul_fp8(const Fp8Matrix& a, const Fp8Matrix& b, const Tensor& bias = {}, DType dtype = bf16);

}  // namespace lockstep
