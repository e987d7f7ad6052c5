#pragma once
// Synthetic digits in the shape of MNIST, drawn as strokes that are bent, scaled and noisy. Examples and tests that use
// them need no download.
#include "data/dataset.h"

namespace lockstep::data {

/// Sample i is an image f32 (1, 28, 28) in [0, 1] of the digit i % 10, with that digit as an i64 scalar. A sample
/// depends only on (seed, i): use another seed for a test set.
class SyntheticDigits : public Dataset<Example> {
 public:
  /// n samples.
  explicit SyntheticDigits(int64_t n, uint64_t seed = 0);
  int64_t size() const override { return n_; }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;

 private:
  int64_t n_;
  uint64_t seed_;
};

}  // namespace lockstep::data
