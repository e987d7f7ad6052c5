#pragma once
// Conversion between element types, defined for every value: floats become integers by truncation, clamped to the
// range, and NaN becomes 0; integers become narrower integers by dropping high bits; bool means "not zero".
#include <limits>
#include <type_traits>

#include "tensor/dtype.h"

namespace lockstep {

/// True for Half and BFloat16.
template <class T> inline constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// Converts one element.
template <class To, class From> LOCKSTEP_HD inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_half<From>) {
    return convert<To>(float(value));
  } else if constexpr (is_half<To>) {
    return To(float(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From low = From(std::numeric_limits<To>::min()), high = From(std::numeric_limits<To>::max());
    if (!(value == value)) return To(0);
    if (value >= high) return std::numeric_limits<To>::max();
    if (value <= low) return std::numeric_limits<To>::min();
    return To(value);
  } else {
    return To(value);
  }
}

/// Defined here and not in dtype.h, because it needs convert().
template <class T> T Scalar::to() const { return is_integral_ ? convert<T>(integer_) : convert<T>(real_); }

/// Calls fn for the C++ type of `dtype`, which may be any real element type or bool, as dispatch() does.
template <class Fn> void dispatch_all(DType dtype, const char* op, Fn&& fn) {
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t, bool>(dtype, op, fn);
}
/// Calls fn for the C++ type of `dtype`, which may be any real element type, as dispatch() does.
template <class Fn> void dispatch_numbers(DType dtype, const char* op, Fn&& fn) {
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t>(dtype, op, fn);
}

}  // namespace lockstep
