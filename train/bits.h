#pragma once
// --trace-bits: writes a line of parameter hashes per step, for lockstep verify.
#include <cstdint>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "train/team.h"

namespace lockstep::train {

/// The hash of a tensor's bytes (BLAKE2b, 64 of its bits).
uint64_t hash_of(const Tensor& tensor);
/// Merges the hashes of all ranks; 0 means that a rank does not hold the parameter. Error if two ranks hold different
/// bits of a parameter. Collective.
std::vector<int64_t> merge_hashes(const Team& team, const std::vector<std::string>& names,
                                  const std::vector<int64_t>& mine, int64_t step);
/// Writes the line of a step, if `out` is open. products: the dtype of matrix products.
void write_trace_line(OutputFile& out, int64_t step, double loss, DType products, const std::vector<std::string>& names,
                      const std::vector<int64_t>& hashes);

}  // namespace lockstep::train
