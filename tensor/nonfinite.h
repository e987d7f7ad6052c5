#pragma once
// Looking for NaN and infinity where the answer stays: on a device the host waits for nothing, and a graph may repeat
// it. all_finite() (ops.h) says at once.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// found[i], of i32, becomes 1 where x[i] has an element that is infinite or NaN, and is left as it is elsewhere. All
/// floating, and on one device.
void find_nonfinite(const std::vector<Tensor>& x, const Tensor& found);

}  // namespace lockstep
