#pragma once
// The kernels of 8-bit floats.
#include "extensions/fp8/float8.h"
#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

/// codes = x * scale in `format`, turned = codes transposed; each is written if defined. x (R, C) contiguous, f32, f16
/// or bf16; scale f32 of one element; codes (R, C) and turned (C, R) u8. amax (f32 of one element), if defined, becomes
/// the larger of itself and the largest |x|, ignoring NaN.
using CastFp8 = void(const Tensor& x, Fp8Format format, const Tensor& scale, Tensor& amax, Tensor& codes,
                     Tensor& turned);
/// out = the exact value of each code; contiguous; out f32 or bf16.
using ReadFp8 = void(const Tensor& codes, Fp8Format format, Tensor& out);
/// out (M, N) = (a a_scale) (b b_scale)^T + bias. Returns false if the device cannot multiply 8-bit floats.
using MatmulFp8 = bool(const Tensor& a, Fp8Format a_format, const Tensor& a_scale, const Tensor& b, Fp8Format b_format,
                       const Tensor& b_scale, const Tensor& bias, Tensor& out);

namespace on_cpu {
CastFp8 cast_fp8;
ReadFp8 read_fp8;
MatmulFp8 matmul_fp8;
}  // namespace on_cpu
namespace on_cuda {
CastFp8 cast_fp8;
ReadFp8 read_fp8;
MatmulFp8 matmul_fp8;
}  // namespace on_cuda

namespace kernels {
extern const Op<CastFp8> cast_fp8;
extern const Op<ReadFp8> read_fp8;
extern const Op<MatmulFp8> matmul_fp8;
}  // namespace kernels

}  // namespace lockstep
