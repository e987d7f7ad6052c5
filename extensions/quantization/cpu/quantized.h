#pragma once
// Products with quantized weights. Three sets of kernels give the same bits; the fastest that the processor supports is
// chosen when the program starts.
#include <string>
#include <vector>

#include "extensions/quantization/codes.h"

namespace lockstep::on_cpu {

/// The kernel sets that this processor can run, the fastest first: "avx512", "avx2", "portable".
std::vector<std::string> quantized_paths();
/// Selects a kernel set for all threads. For tests. Error if this processor cannot run it.
void use_quantized_path(const std::string& name);

/// Computes the codes and scales of w; w and the scales are f32 and contiguous. The scale of a group is rounded to f16
/// where that costs little precision. Returns false if a number is not finite or would overflow when it is decoded.
bool make_codes(const Tensor& w, Quantized& to);

/// A quantized activation: 8-bit codes with one scale for each row. Numbers whose magnitude reaches a threshold are not
/// quantized.
struct CodedRows {
  Tensor codes, scales;                    ///< i8 (rows, in rounded up to 64), f32 (rows)
  std::vector<std::vector<int64_t>> kept;  ///< columns of each row that are not quantized; empty: none
};
/// Quantizes x (rows, in), f32; args gives the threshold.
CodedRows code_rows(const Tensor& x, const QuantMatmulArgs& args);

}  // namespace lockstep::on_cpu
