#pragma once
// Matrices in 8-bit floats (tensor/float8.h) with one scale: number = code * scale_inv. docs/mixed-precision.md.
#include "tensor/float8.h"
#include "tensor/tensor.h"

namespace lockstep {

std::string_view name_of(Fp8Format format);

struct Fp8CastArgs {
  Fp8Format format = Fp8Format::e4m3;
  Tensor scale;      ///< f32 of one element, on x's device: codes are of x * scale
  Tensor amax = {};  ///< the same; where given, it becomes the larger of itself and the largest |x|; NaN does not count
  bool straight = true, turned = false;  ///< what is made
};
struct Fp8Cast {
  Tensor codes, turned;  ///< u8 (R, C), and its transpose (C, R)
};
/// Codes of x (R, C), f32, f16 or bf16, each the nearest (half to even); what is too large saturates.
Fp8Cast cast_fp8(const Tensor& x, const Fp8CastArgs& args);
/// Numbers of codes, without a scale: exact in f32 and bf16.
Tensor read_fp8(const Tensor& codes, Fp8Format format, DType dtype = f32);

struct Fp8Matrix {
  Tensor codes;  ///< u8 (rows, K), contiguous
  Fp8Format format;
  Tensor scale_inv;  ///< f32 of one element, on the same device
};
/// a b^T + bias, (M, K) and (N, K) to (M, N): summed in f32, times both scales, plus bias (N) of dtype (f32, f16,
/// bf16), rounded once. On CUDA devices from 8.9 on by cuBLASLt, where all sizes are multiples of 16 and one of the two
/// is e4m3; elsewhere by a product of bf16, which has the same numbers.
Tensor matmul_fp8(const Fp8Matrix& a, const Fp8Matrix& b, const Tensor& bias = {}, DType dtype = bf16);

}  // namespace lockstep
