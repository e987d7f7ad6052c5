#pragma once
// Samplers that few programs need: #include <lockstep/samplers.h>.
#include <cstdint>
#include <vector>

#include "data/sampler.h"

namespace lockstep::data {

/// Options of WeightedRandomSampler.
struct WeightedOptions {
  int64_t num_samples = 0;  ///< indices of an epoch
  bool replacement = true;  ///< false: no index twice in an epoch
  uint64_t seed = 0;
};

/// PyTorch's WeightedRandomSampler: draws index i with a probability in proportion to weights[i], for datasets whose
/// classes are of different sizes. An epoch depends only on (weights, options, epoch), as that of every sampler, so a
/// DataLoader resumes exactly. Without replacement, each draw is from the indices that are left.
class WeightedRandomSampler {
 public:
  /// Weights need not sum to 1. Error for weights that are negative or not finite, if all are 0, for num_samples < 1,
  /// and, without replacement, for more samples than positive weights.
  WeightedRandomSampler(std::vector<double> weights, const WeightedOptions& options);
  /// The indices of an epoch, in the order of the draws.
  std::vector<int64_t> operator()(int64_t epoch) const;

 private:
  std::vector<double> weights_;
  std::vector<double> sums_;  // running sums of the weights, for draws with replacement
  WeightedOptions options_;
};

}  // namespace lockstep::data
