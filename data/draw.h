#pragma once
// A short sequence of random numbers under one Philox key, for shuffles, splits and synthetic datasets.
#include <array>
#include <cstdint>

#include "tensor/random.h"

namespace lockstep::data {

/// Mixes two numbers into one seed, as key_of_call() mixes the step and the micro-batch into a Philox key.
inline uint64_t seed_of(uint64_t a, uint64_t b) { return key_of_call({.step = a, .micro_batch = b}).stream; }

/// Random numbers of one key, in order. Two draws take one Philox block.
class Draws {
 public:
  /// Starts at the first number of `key`.
  explicit Draws(PhiloxKey key) : key_(key) {}

  /// 64 random bits.
  uint64_t next() {
    if (left_ == 0) {
      words_ = philox(key_, index_++);
      left_ = 2;
    }
    --left_;
    return uint64_t(words_[size_t(2 * left_)]) << 32 | words_[size_t(2 * left_ + 1)];
  }
  /// Uniform in 0 .. n-1. The bias, n / 2^64, is negligible.
  int64_t below(int64_t n) { return int64_t((unsigned __int128)(next()) * uint64_t(n) >> 64); }
  /// Uniform in [0, 1).
  float uniform() { return float(next() >> 40) * 0x1p-24f; }
  float uniform(float low, float high) { return low + (high - low) * uniform(); }

 private:
  PhiloxKey key_;
  uint64_t index_ = 0;
  std::array<uint32_t, 4> words_{};
  int left_ = 0;
};

}  // namespace lockstep::data
