#pragma once
// Scalar: a number that an operation takes beside its tensors. Integers are kept as 64-bit integers, not as doubles, so
// that all their bits survive.
#include <cstdint>
#include <iosfwd>
#include <type_traits>

#include "tensor/dtype.h"

namespace lockstep {

/// A real number or an integer; converts implicitly from arithmetic types.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value)  // NOLINT: implicit on purpose
      : is_whole_(std::is_integral_v<T> && (std::is_signed_v<T> || sizeof(T) < 8 || value <= T(INT64_MAX))),
        whole_(is_whole_ ? int64_t(value) : 0),
        real_(double(value)) {}

  constexpr double real() const { return real_; }  ///< the value as double
  /// The value converted to T, an element type, as Tensor::to() converts elements. Defined in convert.h.
  template <class T> T to() const;
  /// True if a tensor of this dtype can hold the value: integer dtypes hold integers in their range, all others any
  /// number (rounded).
  bool fits(DType dtype) const;
  /// Negation; integers wrap around.
  Scalar operator-() const { return is_whole_ ? Scalar(int64_t(-uint64_t(whole_))) : Scalar(-real_); }
  friend bool operator==(const Scalar& a, const Scalar& b) {
    return a.is_whole_ && b.is_whole_ ? a.whole_ == b.whole_ : a.real_ == b.real_;
  }
  friend std::ostream& operator<<(std::ostream& out, const Scalar& scalar);

 private:
  bool is_whole_;  // true if constructed from an integer that fits int64_t
  int64_t whole_;
  double real_;
};

/// Smallest and largest number of an integer dtype.
struct WholeRange {
  int64_t low, high;
};
/// The range of an integer dtype; Error for others.
WholeRange whole_range(DType dtype);

/// Error when an integer dtype cannot hold the value: a fraction, or out of range.
void check_fits(const char* op, const Scalar& value, DType dtype);

}  // namespace lockstep
