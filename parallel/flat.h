#pragma once
// Flat memory: several tensors in one, so that a single collective moves them all.
#include <string>
#include <vector>

#include "autograd/variable.h"

namespace lockstep::parallel {

/// Copies tensors of one dtype and device into one flat tensor.
struct Packed {
  /// Copies the tensors. With an empty list, `flat` stays undefined.
  explicit Packed(const std::vector<Tensor>& tensors);
  Tensor flat;                ///< the flat tensor
  std::vector<Tensor> parts;  ///< views of `flat`, in the tensors' shapes
};

/// Groups parameters of equal kinds[i] into units. The sizes[i] of a unit add up to at most `cap`, those of the first
/// unit of each kind to at most `first_cap` (0: `cap`). A larger parameter gets a unit of its own. Returns the indices
/// of each unit's parameters, in ascending order. The units come in the order in which they fill up; units that never
/// fill up come last.
std::vector<std::vector<size_t>> plan_units(const std::vector<int64_t>& sizes, const std::vector<std::string>& kinds,
                                            int64_t cap, int64_t first_cap = 0);
/// Calls plan_units() with sizes in bytes. The parameters of a bucket have one dtype and device.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap);

}  // namespace lockstep::parallel
