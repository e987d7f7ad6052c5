#pragma once
// Digits drawn by ourselves: strokes, bent, scaled and noisy, in the shape of MNIST, so that examples and tests need no
// file.
#include "data/dataset.h"

namespace lockstep::data {

/// Sample i is a picture f32 (1, 28, 28) in [0, 1] of the digit i % 10, and that digit as an i64 scalar. It depends on
/// (seed, i) only: another seed gives other samples, for a test set.
class SyntheticDigits : public Dataset<Example> {
 public:
  explicit SyntheticDigits(int64_t n, uint64_t seed = 0);
  int64_t size() const override { return n_; }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;

 private:
  int64_t n_;
  uint64_t seed_;
};

}  // namespace lockstep::data
