#pragma once
// A number that an operation takes beside its tensors. A whole number stays one, so that all its 64 bits count, as
// those of a tensor of whole numbers do.
#include <cmath>
#include <iosfwd>

#include "tensor/convert.h"

namespace lockstep {

class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value)  // NOLINT: implicit on purpose
      : is_whole_(std::is_integral_v<T> && (std::is_signed_v<T> || sizeof(T) < 8 || value <= T(INT64_MAX))),
        whole_(is_whole_ ? int64_t(value) : 0),
        real_(double(value)) {}

  constexpr double real() const { return real_; }
  template <class T> T to() const { return is_whole_ ? convert<T>(whole_) : convert<T>(real_); }
  /// Whether a tensor of whole numbers of that dtype can hold it. All others hold any, rounded.
  bool fits(DType dtype) const;
  /// Whole numbers wrap around.
  Scalar operator-() const { return is_whole_ ? Scalar(int64_t(-uint64_t(whole_))) : Scalar(-real_); }
  friend bool operator==(const Scalar& a, const Scalar& b) {
    return a.is_whole_ && b.is_whole_ ? a.whole_ == b.whole_ : a.real_ == b.real_;
  }
  friend std::ostream& operator<<(std::ostream& out, const Scalar& scalar);

 private:
  bool is_whole_;  // given as such
  int64_t whole_;
  double real_;
};

/// The least and the largest number of a dtype of whole numbers.
struct WholeRange {
  int64_t low, high;
};
WholeRange whole_range(DType dtype);

/// Error where the dtype cannot hold it: a fraction, or out of range.
void check_fits(const char* op, const Scalar& value, DType dtype);

}  // namespace lockstep
