#pragma once
// Element types, and Scalar: a number that an operation takes beside its tensors. Kernels dispatch on the dtype over an
// explicit list of types; other dtypes are an Error.
#include <complex>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "tensor/half.h"

namespace lockstep {

/// Element types: floats, integers, bool, and complex numbers of two f32 (c64) or two f64 (c128).
enum class DType : uint8_t { f32, f64, f16, bf16, i64, i32, i8, u8, boolean, c64, c128 };

/// Short names for the element types.
inline constexpr DType f32 = DType::f32, f64 = DType::f64, f16 = DType::f16, bf16 = DType::bf16;
inline constexpr DType i64 = DType::i64, i32 = DType::i32, i8 = DType::i8, u8 = DType::u8;
inline constexpr DType boolean = DType::boolean;
inline constexpr DType c64 = DType::c64, c128 = DType::c128;

/// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  constexpr int64_t bytes[] = {4, 8, 2, 2, 8, 4, 1, 1, 1, 8, 16};
  return bytes[int(dtype)];
}

/// "f32", "bf16", "bool", ...
constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view names[] = {"f32", "f64", "f16", "bf16", "i64", "i32", "i8", "u8", "bool", "c64", "c128"};
  return names[int(dtype)];
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }  ///< true: f32, f64, f16 or bf16
/// True for an integer dtype; false for bool.
constexpr bool is_integral(DType dtype) { return dtype >= DType::i64 && dtype <= DType::u8; }
constexpr bool is_complex(DType dtype) { return dtype >= DType::c64; }  ///< true: c64 or c128
/// dtype of the parts of a complex dtype; other dtypes are returned as they are.
constexpr DType real_dtype(DType dtype) {
  return dtype == DType::c64 ? DType::f32 : dtype == DType::c128 ? DType::f64 : dtype;
}

/// Parses "f32" or "float32", "bf16" or "bfloat16", ...; the Error names all known names.
DType parse_dtype(std::string_view name);

/// Prints name_of().
std::ostream& operator<<(std::ostream& out, DType dtype);

/// The DType of a C++ element type.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "not an element type");
  return DType::f32;
}();
template <> inline constexpr DType dtype_of<float> = DType::f32;
template <> inline constexpr DType dtype_of<double> = DType::f64;
template <> inline constexpr DType dtype_of<Half> = DType::f16;
template <> inline constexpr DType dtype_of<BFloat16> = DType::bf16;
template <> inline constexpr DType dtype_of<int64_t> = DType::i64;
template <> inline constexpr DType dtype_of<int32_t> = DType::i32;
template <> inline constexpr DType dtype_of<int8_t> = DType::i8;
template <> inline constexpr DType dtype_of<uint8_t> = DType::u8;
template <> inline constexpr DType dtype_of<bool> = DType::boolean;
template <> inline constexpr DType dtype_of<std::complex<float>> = DType::c64;
template <> inline constexpr DType dtype_of<std::complex<double>> = DType::c128;

/// True for std::complex.
template <class T> inline constexpr bool is_complex_type = false;
template <class T> inline constexpr bool is_complex_type<std::complex<T>> = true;

/// Throws dispatch()'s Error, which lists the expected dtypes.
[[noreturn]] void fail_dtype(const char* op, DType got, const DType* expected, int count);

/// Calls fn.template operator()<T>() with the C++ type T of `dtype`, which must be one of Types, else Error:
/// dispatch<float, double>(x.dtype(), "softmax", [&]<class T> { ... }).
template <class... Types, class Fn> void dispatch(DType dtype, const char* op, Fn&& fn) {
  const bool done = ((dtype == dtype_of<Types> ? (fn.template operator()<Types>(), true) : false) || ...);
  if (!done) {
    constexpr DType expected[] = {dtype_of<Types>...};
    fail_dtype(op, dtype, expected, sizeof...(Types));
  }
}

/// A real number or an integer; converts implicitly from arithmetic types. Integers are kept as 64-bit integers, not as
/// doubles, so that all their bits survive.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value)  // NOLINT: implicit on purpose
      : is_integral_(std::is_integral_v<T> && (std::is_signed_v<T> || sizeof(T) < 8 || value <= T(INT64_MAX))),
        integer_(is_integral_ ? int64_t(value) : 0),
        real_(double(value)) {}

  constexpr double real() const { return real_; }  ///< the value as double
  /// The value converted to T, an element type, as Tensor::to() converts elements. Defined in convert.h.
  template <class T> T to() const;
  /// True if a tensor of this dtype can hold the value: integer dtypes hold integers in their range, all others any
  /// number (rounded).
  bool fits(DType dtype) const;
  /// Negation; integers wrap around.
  Scalar operator-() const { return is_integral_ ? Scalar(int64_t(-uint64_t(integer_))) : Scalar(-real_); }
  friend bool operator==(const Scalar& a, const Scalar& b) {
    return a.is_integral_ && b.is_integral_ ? a.integer_ == b.integer_ : a.real_ == b.real_;
  }
  friend std::ostream& operator<<(std::ostream& out, const Scalar& scalar);

 private:
  bool is_integral_;  // true if constructed from an integer that fits int64_t
  int64_t integer_;
  double real_;
};

/// Smallest and largest number of an integer dtype.
struct IntegerRange {
  int64_t low, high;
};
/// The range of an integer dtype; Error for others.
IntegerRange integer_range(DType dtype);

/// Error when an integer dtype cannot hold the value: a fraction, or out of range.
void check_fits(const char* op, const Scalar& value, DType dtype);

}  // namespace lockstep
