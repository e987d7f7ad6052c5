// Shapes: row-major strides, broadcasting, negative dims.
#include "tensor/shape.h"

#include <ostream>
#include <string>

namespace lockstep {

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  out << '(';
  // std::to_string() ignores the stream's locale, which could print 1234 as 1,234.
  for (int i = 0; i < dims.rank(); ++i) out << (i ? ", " : "") << std::to_string(dims[i]);
  return out << ')';
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

void check_shape(const char* op, const Shape& shape) {
  int64_t product = 1;
  bool overflow = false;
  for (int64_t size : shape) {
    LOCKSTEP_CHECK(size >= 0, "[", op, "] expected sizes >= 0, got shape ", shape);
    // Count a size of 0 as 1: strides are products of the other sizes, and must fit in 63 bits too.
    overflow |= __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product);
  }
  LOCKSTEP_CHECK(!overflow, "[", op, "] expected fewer than 2^63 elements, got shape ", shape, "; make it smaller");
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  Shape result = Shape::filled(std::max(a.rank(), b.rank()), 1);
  for (int i = 1; i <= result.rank(); ++i) {
    const int64_t of_a = i <= a.rank() ? a[a.rank() - i] : 1;
    const int64_t of_b = i <= b.rank() ? b[b.rank() - i] : 1;
    LOCKSTEP_CHECK(of_a == of_b || of_a == 1 || of_b == 1, "[", op, "] expected shapes that broadcast, got ", a,
                   " and ", b, "; reshape or expand one of them");
    result[result.rank() - i] = of_a == 1 ? of_b : of_a;
  }
  return result;
}

int normalize_dim(const char* op, int64_t dim, int rank) {
  const int range = std::max(rank, 1);
  LOCKSTEP_CHECK(dim >= -range && dim < range, "[", op, "] expected a dim from ", -range, " to ", range - 1, ", got ",
                 dim);
  return int(dim < 0 ? dim + range : dim);
}

}  // namespace lockstep
