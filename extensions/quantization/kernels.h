#pragma once
// The kernels of quantized weights (codes.h). codes.cpp checks and allocates.
#include "extensions/quantization/codes.h"
#include "tensor/op.h"

namespace lockstep {

/// out = activation(x w^T + bias): x (rows, in), bias (out), out (rows, out), contiguous, of one dtype: f32, f16 or
/// bf16. Sums are in f32. A row's result does not depend on the other rows, unless args.full_columns is true.
using MatmulQuantized = void(const Tensor& x, const Tensor& codes, const Tensor& scales, QuantFormat format,
                             const Tensor& bias, const QuantMatmulArgs& args, Tensor& out);
/// Decodes a weight: out (out, in) = code * scale, rounded to f32 and then to out's dtype: f32, f16 or bf16.
using ReadQuantized = void(const Tensor& codes, const Tensor& scales, QuantFormat format, Tensor& out);

namespace on_cpu {
MatmulQuantized matmul_quantized;
ReadQuantized read_quantized;
}  // namespace on_cpu
namespace on_cuda {
MatmulQuantized matmul_quantized;
ReadQuantized read_quantized;
}  // namespace on_cuda

namespace kernels {
extern const Op<MatmulQuantized> matmul_quantized;
extern const Op<ReadQuantized> read_quantized;
}  // namespace kernels

}  // namespace lockstep
