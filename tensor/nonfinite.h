#pragma once
// Detects NaN and infinity, and leaves the result on the device: the host does not wait, and a graph can record the
// search. all_finite() (ops.h) returns the result to the host instead.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// Sets found[i] (i32) to 1 if x[i] has an infinite or NaN element, else leaves found[i] as it is. All x are floating,
/// on the device of `found`.
void find_nonfinite(const std::vector<Tensor>& x, const Tensor& found);

}  // namespace lockstep
