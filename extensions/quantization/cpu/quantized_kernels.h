#pragma once
// The kernels that quantized.cpp calls: one set for each instruction set. quantized_simd.cpp implements the sets.
#include <cstdint>

#include "extensions/quantization/kernels.h"

namespace lockstep::on_cpu {

/// The address from which codes are prefetched, byte after byte, while the rows before `o` are processed. Requests that
/// alternate between rows get a third of the bandwidth of a single stream.
inline const uint8_t* codes_after(const CodedMatrix& w, int64_t o) { return w.row(o) + 4096; }

inline constexpr int64_t panel_columns = 32;    ///< outputs whose weights are decoded together
inline constexpr int64_t depth_of_tiles = 512;  ///< k in one block of many()
/// Largest number of rows, and of outputs, that few() computes together.
inline constexpr int max_rows = 6, max_columns = 4;

/// A set of kernels for x w^T. A call computes out[r * ld + o] for each row r of x and the outputs o from o0 to o1 - 1.
/// The caller has padded each row of x with zeros to 32 * w.groups numbers.
struct QuantizedKernels {
  const char* name;  ///< the name that quantized_paths() lists
  bool (*works)();   ///< true if this processor can run it
  /// Handles at most max_rows rows of x. Reads the codes in place. scratch: (max_columns + 1) * w.groups numbers.
  void (*few)(const CodedMatrix& w, int64_t o0, int64_t o1, const float* x, int64_t rows, float* out, int64_t ld,
              float* scratch);
  /// Handles any number of rows of x. o1 - o0 <= panel_columns. scratch: many_scratch(w) numbers.
  void (*many)(const CodedMatrix& w, int64_t o0, int64_t o1, const float* x, int64_t rows, float* out, int64_t ld,
               float* scratch);
  /// Multiplies quantized rows by quantized weights, in integers. Output o goes to out[r * ld + o - o0]. Rows of x are
  /// x_row bytes apart. The kernel may read past the end of a row, up to the next multiple of 64 bytes.
  void (*dots)(const CodedMatrix& w, int64_t o0, int64_t o1, const int8_t* x, int64_t x_row, int64_t rows, int32_t* out,
               int64_t ld);
};
/// The size of the scratch memory that many() needs, in numbers.
inline int64_t many_scratch(const CodedMatrix& w) {
  return panel_columns * w.groups * quant_group + w.groups + panel_columns * max_rows * 16;
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
