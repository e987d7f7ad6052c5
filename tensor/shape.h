#pragma once
// Shapes and strides: up to 8 dims, stored inline so that a tensor needs no allocation for them.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <vector>

#include "base/check.h"

namespace lockstep {

/// A short list of 64-bit sizes or indices, one for each dim, outermost first.
class Dims {
 public:
  static constexpr int max_rank = 8;  ///< most dims of a tensor

  Dims() = default;
  /// Error for more than max_rank values, as in the other constructors.
  Dims(std::initializer_list<int64_t> values) : Dims(values.begin(), values.end()) {}
  Dims(const std::vector<int64_t>& values) : Dims(values.data(), values.data() + values.size()) {}
  Dims(const int64_t* first, const int64_t* last) {
    LOCKSTEP_CHECK(last - first <= max_rank, "[shape] expected at most ", max_rank, " dims, got ", last - first,
                   "; merge some");
    rank_ = int(last - first);
    std::copy(first, last, values_);
  }
  /// `rank` copies of one value.
  static Dims filled(int rank, int64_t value) {
    Dims dims;
    for (int i = 0; i < rank; ++i) dims.push_back(value);
    return dims;
  }

  int rank() const { return rank_; }
  int size() const { return rank_; }                      ///< the same as rank()
  bool empty() const { return rank_ == 0; }               ///< true for a scalar
  int64_t operator[](int i) const { return values_[i]; }  ///< no check of the range
  int64_t& operator[](int i) { return values_[i]; }
  int64_t back() const { return values_[rank_ - 1]; }  ///< the last value; undefined when empty
  // Iterators over the sizes or indices in the list.
  const int64_t* begin() const { return values_; }
  const int64_t* end() const { return values_ + rank_; }
  int64_t* begin() { return values_; }
  int64_t* end() { return values_ + rank_; }

  void push_back(int64_t value) { insert(rank_, value); }  ///< Error for more than max_rank
  /// Inserts a value before position `at`.
  void insert(int at, int64_t value) {
    LOCKSTEP_CHECK(rank_ < max_rank, "[shape] expected at most ", max_rank, " dims, got one more; reshape()");
    for (int i = rank_++; i > at; --i) values_[i] = values_[i - 1];
    values_[at] = value;
  }
  /// Removes the value at position `at`.
  void erase(int at) {
    for (int i = at; i + 1 < rank_; ++i) values_[i] = values_[i + 1];
    --rank_;
  }

  friend bool operator==(const Dims& a, const Dims& b) {
    return a.rank_ == b.rank_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  int64_t values_[max_rank] = {};
  int rank_ = 0;
};

/// Sizes of a tensor.
using Shape = Dims;
/// Distances between neighbours along each dim, in elements.
using Strides = Dims;

/// Prints the sizes, as in "(2, 3)".
std::ostream& operator<<(std::ostream& out, const Dims& dims);

/// Product of the sizes; 1 for a scalar.
inline int64_t numel_of(const Shape& shape) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

/// Row-major strides for a shape, in elements.
Strides contiguous_strides(const Shape& shape);

/// Error unless all sizes are >= 0 and their product fits in 63 bits; `op` names the caller.
void check_shape(const char* op, const Shape& shape);

/// The shape to which a and b broadcast (NumPy's rule). If there is none, throws an Error that names both shapes.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

/// Maps dim -rank .. rank-1 to 0 .. rank-1. The Error for other dims names the range. A scalar accepts 0 and -1.
int normalize_dim(const char* op, int64_t dim, int rank);

}  // namespace lockstep
