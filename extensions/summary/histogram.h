#pragma once
// The histogram of a tensor, in TensorBoard's bins.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// Counts of values in bins. Bin i has the values from limits[i - 1] up to, but without, limits[i]. The first bin has
/// none: its limit is where the second one begins.
struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits;  ///< right limits of the bins
  std::vector<double> counts;  ///< values in each bin
};

/// Counts the values of a tensor (any shape, a dtype of real numbers) in the bins of torch.utils.tensorboard: their
/// limits are 0 and +- 1e-12 * 1.1^n below 1e20. Values beyond them, infinities and NaN are left out. Error if none is
/// left.
Histogram histogram_of(const Tensor& values);

}  // namespace lockstep
