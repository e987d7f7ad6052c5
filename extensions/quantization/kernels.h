#pragma once
// The kernels of quantized weights (codes.h). codes.cpp checks and allocates.
#include "extensions/quantization/codes.h"
#include "tensor/op.h"

namespace lockstep {

/// A quantized matrix as pointers and sizes, as kernels read it.
struct CodedMatrix {
  const uint8_t* codes;
  const void* scales;
  int64_t out, in, row_bytes, groups;
  bool by_row, wide, four;  ///< by_row: a scale for each row; wide: scales are f32, else f16; four: codes have 4 bits

  /// Points into the memory of w, which must stay alive.
  explicit CodedMatrix(const Quantized& w)
      : codes(static_cast<const uint8_t*>(w.codes.raw_data())),
        scales(w.scales.raw_data()),
        out(w.out),
        in(w.in),
        row_bytes(w.codes.size(1)),
        groups((w.in + quant_group - 1) / quant_group),
        by_row(w.format == QuantFormat::row8),
        wide(w.scales.dtype() == f32),
        four(w.format == QuantFormat::group4) {}
  const uint8_t* row(int64_t o) const { return codes + o * row_bytes; }  ///< codes of row o
  /// The scale of code k of row o.
  LOCKSTEP_HD float scale(int64_t o, int64_t k) const {
    const int64_t at = by_row ? o : o * groups + k / quant_group;
    return wide ? static_cast<const float*>(scales)[at] : float(static_cast<const Half*>(scales)[at]);
  }
};

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
