#pragma once
// What quantized.cpp asks of a set of kernels; quantized_simd.cpp has them.
#include <cstdint>

#include "tensor/quantized.h"

namespace lockstep::on_cpu {

/// A matrix in codes, and where its numbers lie.
struct CodedMatrix {
  QuantFormat format;
  const uint8_t* codes;
  const void* scales;
  bool wide;  ///< scales are f32
  int64_t in, row_bytes, groups;

  explicit CodedMatrix(const Quantized& w)
      : format(w.format),
        codes(static_cast<const uint8_t*>(w.codes.raw_data())),
        scales(w.scales.raw_data()),
        wide(w.scales.dtype() == f32),
        in(w.in),
        row_bytes(w.codes.size(1)),
        groups((w.in + quant_group - 1) / quant_group) {}
  const uint8_t* row(int64_t o) const { return codes + o * row_bytes; }
};

inline constexpr int64_t panel_columns = 32;  ///< outputs whose weights are made floating at a time
inline constexpr int64_t depth_of_tiles = 512;
inline constexpr int most_rows = 6, most_columns = 4;

/// All of them: out (rows x columns [o0, o1) of w) at out + r * ld + o; x rows of 32 groups numbers, zeros behind `in`.
struct QuantizedKernels {
  const char* name;
  bool (*works)();
  /// At most most_rows rows, the weights read where they are. scratch: (most_columns + 1) * groups numbers.
  void (*few)(const CodedMatrix& w, int64_t o0, int64_t o1, const float* x, int64_t rows, float* out, int64_t ld,
              float* scratch);
  /// Any number of rows; o1 - o0 <= panel_columns. scratch: many_scratch(w).
  void (*many)(const CodedMatrix& w, int64_t o0, int64_t o1, const float* x, int64_t rows, float* out, int64_t ld,
               float* scratch);
  /// Sums of products of codes, columns [o0, o1) of them at out; x rows x_row apart, readable up to a multiple of 64.
  void (*dots)(const CodedMatrix& w, int64_t o0, int64_t o1, const int8_t* x, int64_t x_row, int64_t rows, int32_t* out,
               int64_t ld);
};
inline int64_t many_scratch(const CodedMatrix& w) {
  return panel_columns * w.groups * quant_group + w.groups + panel_columns * most_rows * 16;
}

#if defined(__x86_64__)
namespace avx512 {
extern const QuantizedKernels kernels;
}
namespace avx2 {
extern const QuantizedKernels kernels;
}
#endif
namespace portable {
extern const QuantizedKernels kernels;
}

}  // namespace lockstep::on_cpu
