// Ranges of integer dtypes, and whether a number fits one. See dtype.h.
#include "tensor/dtype.h"

#include <cmath>
#include <limits>
#include <ostream>

#include "tensor/convert.h"

namespace lockstep {

// For callers that do not include convert.h.
template float Scalar::to() const;
template double Scalar::to() const;
template Half Scalar::to() const;
template BFloat16 Scalar::to() const;
template int64_t Scalar::to() const;
template int32_t Scalar::to() const;
template int8_t Scalar::to() const;
template uint8_t Scalar::to() const;
template bool Scalar::to() const;

IntegerRange integer_range(DType dtype) {
  IntegerRange range{};
  dispatch<int64_t, int32_t, int8_t, uint8_t>(dtype, "range", [&]<class T> {
    range = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
  });
  return range;
}

bool Scalar::fits(DType dtype) const {
  if (!is_integral(dtype)) return true;
  const auto [low, high] = integer_range(dtype);
  if (is_integral_) return low <= integer_ && integer_ <= high;
  return std::rint(real_) == real_ && double(low) <= real_ && real_ < double(high) + 1;
}

std::ostream& operator<<(std::ostream& out, const Scalar& scalar) {
  return scalar.is_integral_ ? out << scalar.integer_ : out << scalar.real_;
}

void check_fits(const char* op, const Scalar& value, DType dtype) {
  if (value.fits(dtype)) return;
  const bool is_fraction = std::isfinite(value.real()) && std::rint(value.real()) != value.real();
  LOCKSTEP_CHECK(!is_fraction, "[", op, "] expected a whole number for ", dtype, ", got ", value,
                 "; take a floating dtype: .to(f32), or {.dtype = f32}");
  const auto [low, high] = integer_range(dtype);
  const DType wider = dtype == i64 ? f64 : i64;
  fail(str("[", op, "] expected a whole number from ", low, " to ", high, " for ", dtype, ", got ", value,
           "; take a dtype that holds it: .to(", wider, "), or {.dtype = ", wider, "}"));
}

}  // namespace lockstep
