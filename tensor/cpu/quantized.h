#pragma once
// Products with weights in codes. Three sets of kernels give the same bits: which one runs is chosen when the program
// starts, by what the processor has.
#include <string>
#include <vector>

#include "tensor/quantized.h"

namespace lockstep::on_cpu {

/// "avx512", "avx2", "portable": those that this processor can run, the fastest first.
std::vector<std::string> quantized_paths();
/// From now on this one, in all threads. For tests.
void use_quantized_path(const std::string& name);

/// Codes and scales of w, both f32 and contiguous; a group's is rounded to f16 where that costs little. False when a
/// number is not finite, or would not be when read.
bool make_codes(const Tensor& w, Quantized& to);
/// f32, to.
void read_codes(const Quantized& w, Tensor& to);

/// An activation in codes: row8 of what is below the threshold in each row.
struct CodedRows {
  Tensor codes, scales;                    ///< i8 (rows, in rounded up to 64), f32 (rows)
  std::vector<std::vector<int64_t>> kept;  ///< columns of each row that stay as they are; empty: none do
};
CodedRows code_rows(const Tensor& x, const QuantMatmulArgs& args);

}  // namespace lockstep::on_cpu
