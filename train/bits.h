#pragma once
// --trace-bits: a line of hashes a step, which lockstep verify compares.
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/output_file.h"
#include "train/team.h"

namespace lockstep::train {

/// What --trace-bits writes: a hash of each parameter.
uint64_t hash_of(const Tensor& tensor);
/// The hashes that ranks hold, 0 for parameters that a rank has not. Error when two hold different ones.
std::vector<int64_t> merge_hashes(const Team& team, const std::vector<std::string>& names,
                                  const std::vector<int64_t>& mine, int64_t step);
/// A line for the step, when `out` is open. products: what matrices are multiplied in.
void write_trace_line(OutputFile& out, int64_t step, double loss, DType products, const std::vector<std::string>& names,
                      const std::vector<int64_t>& hashes);

}  // namespace lockstep::train
