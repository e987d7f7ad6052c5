#pragma once
// How the fake cuBLASLt adds products of 8-bit floats: as Hopper does, in fewer bits than f32.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake {

/// A column of sums. Of 32 products each is cut off 13 binary places below the leading bit of the largest one, and
/// their sum is added in f32.
class FewBits {
 public:
  explicit FewBits(int64_t count) : part_(size_t(count)), max_(size_t(count)), full_(size_t(count)) {}
  /// Adds left[i] * right to sum i. `left` must live until end().
  void add(const double* left, double right) {
    held_.push_back({left, right});
    if (held_.size() == 32) end();
  }
  /// Ends the sums.
  void end() {
    const size_t count = full_.size();
    std::fill(part_.begin(), part_.end(), 0.0), std::fill(max_.begin(), max_.end(), 0);
    for (const auto& [left, right] : held_)
      for (size_t i = 0; i < count; ++i) max_[i] = std::max(max_[i], exponent(left[i] * right));
    for (const auto& [left, right] : held_)
      for (size_t i = 0; i < count; ++i) {
        const double unit = std::bit_cast<double>(uint64_t(std::max(max_[i], 14) - 13) << 52);
        part_[i] += std::trunc(left[i] * right / unit) * unit;
      }
    for (size_t i = 0; i < count; ++i) full_[i] = float(full_[i] + part_[i]);
    held_.clear();
  }
  /// Sum i, after end().
  double operator[](int64_t i) const { return full_[size_t(i)]; }

 private:
  /// The exponent in the bits of a double; 0 for 0 and for what is not finite.
  static int exponent(double x) { return std::isfinite(x) ? int(std::bit_cast<uint64_t>(x) >> 52 & 2047) : 0; }
  struct Held {
    const double* left;
    double right;
  };
  std::vector<Held> held_;
  std::vector<double> part_;
  std::vector<int> max_;
  std::vector<double> full_;
};

}  // namespace fake
