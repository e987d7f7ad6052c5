#pragma once
// Elementary functions for kernels, for f32 and f64, on CPU and GPU. The f32 versions have no branches and no calls, so
// that compilers vectorise loops over them. Errors are at most 2 to 3 units in the last place over the whole range,
// including denormals, infinities and NaN; the polynomials are minimax fits made for this file. The f64 versions call
// std and serve reference checks.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tensor/host_device.h"

namespace lockstep::math {

/// The bits of a float.
LOCKSTEP_HD constexpr int32_t bits_of(float x) { return std::bit_cast<int32_t>(x); }
/// The float with these bits.
LOCKSTEP_HD constexpr float float_of(int32_t bits) { return std::bit_cast<float>(bits); }

/// The polynomial in x with these coefficients, highest power first.
template <class... C> LOCKSTEP_HD inline float polynomial(float x, float p, C... coefficients) {
  ((p = p * x + coefficients), ...);
  return p;
}

/// 2^n for -126 <= n <= 127, and infinity for 128.
LOCKSTEP_HD inline float power_of_two(int32_t n) { return float_of(int32_t(uint32_t(n + 127) << 23)); }

/// The parts of x = n ln 2 + r with |r| <= ln 2 / 2; n_bits is n as an integer. Valid for |x| < 1000.
struct ExpParts {
  float r;
  float n;
  int32_t n_bits;
};
/// Splits x for exp().
LOCKSTEP_HD inline ExpParts split_exp(float x) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float shift = 12582912.f;
  const float t = x * 1.44269504f + shift;
  const float n = t - shift;
  // ln 2 = high + low: high has 15 bits, so n * high is exact.
  const float r = (x - n * 0.693145752f) - n * 1.42860682e-6f;
  return {r, n, int32_t(uint32_t(bits_of(t)) - uint32_t(bits_of(shift)))};
}

/// e^r - 1 for |r| <= ln 2 / 2.
LOCKSTEP_HD inline float expm1_poly(float r) {
  const float p = polynomial(r, 1.381314243e-3f, 8.369418792e-3f, 4.166845605e-2f, 1.666651517e-1f, 4.999999404e-1f);
  return p * (r * r) + r;
}

/// e^x.
LOCKSTEP_HD inline float exp(float x) {
  const float clipped = x > 89.f ? 89.f : x < -104.f ? -104.f : x;  // keeps NaN
  const ExpParts parts = split_exp(clipped);
  // Multiplies by 2^n in two factors, because for denormal results 2^n itself is too small for a normal float.
  const int32_t half = parts.n_bits >> 1;
  return (1.f + expm1_poly(parts.r)) * power_of_two(half) * power_of_two(parts.n_bits - half);
}
LOCKSTEP_HD inline double exp(double x) { return std::exp(x); }

/// exp for |x| <= 87.33, where the result is a normal number.
LOCKSTEP_HD inline float exp_normal(float x) {
  const ExpParts parts = split_exp(x);
  return (1.f + expm1_poly(parts.r)) * power_of_two(parts.n_bits);
}
LOCKSTEP_HD inline double exp_normal(double x) { return std::exp(x); }

/// A cheaper exp for use inside 1 / (1 + e^x): never below 1.2e-38, and infinite for x from 88.4 on.
LOCKSTEP_HD inline float exp_coarse(float x) { return exp_normal(x > 89.f ? 89.f : x < -87.3f ? -87.3f : x); }
LOCKSTEP_HD inline double exp_coarse(double x) { return std::exp(x); }

/// e^x - 1, accurate near 0.
LOCKSTEP_HD inline float expm1(float x) {
  const float clipped = x > 89.f ? 89.f : x < -18.f ? -18.f : x;
  const ExpParts parts = split_exp(clipped);
  // The result is 2^n p + (2^n - 1). Half of it is computed first, so that n may be 128, where 2^n would overflow.
  const float scale = power_of_two(parts.n_bits - 1), p = expm1_poly(parts.r);
  const float y = 2.f * (scale * p + (scale - 0.5f));
  return std::copysign(parts.n_bits == 0 ? p : y, x);
}
LOCKSTEP_HD inline double expm1(double x) { return std::expm1(x); }

/// The parts of x = 2^e (1 + f), with 1 + f from sqrt(1/2) to sqrt(2). For finite x > 0.
struct LogParts {
  float f, e;
};
/// Splits x for log().
LOCKSTEP_HD inline LogParts split_log(float x) {
  const bool denormal = x < 1.17549435e-38f;
  const int32_t bits = bits_of(denormal ? x * 8388608.f : x);
  const int32_t e = int32_t(uint32_t(bits) - 0x3f3504f3u) >> 23;  // 0x3f3504f3 is sqrt(1/2)
  const float m = float_of(int32_t(uint32_t(bits) - (uint32_t(e) << 23)));
  return {m - 1.f, float(e) - (denormal ? 23.f : 0.f)};
}

/// log(1 + f) for f of split_log().
LOCKSTEP_HD inline float log1p_poly(float f) {
  const float p = polynomial(f, 6.746601313e-2f, -1.167564094e-1f, 1.188817471e-1f, -1.240559146e-1f, 1.421955079e-1f,
                             -1.666799635e-1f, 2.000211924e-1f, -2.500000894e-1f, 3.333331347e-1f);
  return (p * f - 0.5f) * (f * f) + f;
}

/// log(x), given y: y is log(x) if x is positive and finite. Otherwise the result is -infinity for 0, NaN for negative
/// x, and x itself for infinity and NaN.
LOCKSTEP_HD inline float log_or_special(float x, float y) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  y = x < infinity ? y : x;  // infinity and NaN stay
  y = x < 0.f ? std::numeric_limits<float>::quiet_NaN() : y;
  return x == 0.f ? -infinity : y;
}

/// Natural logarithm.
LOCKSTEP_HD inline float log(float x) {
  const LogParts parts = split_log(x);
  return log_or_special(x, parts.e * 0.693145752f + (parts.e * 1.42860682e-6f + log1p_poly(parts.f)));
}
LOCKSTEP_HD inline double log(double x) { return std::log(x); }

/// Logarithm to base 2.
LOCKSTEP_HD inline float log2(float x) {
  const LogParts parts = split_log(x);
  const float y = log1p_poly(parts.f);
  // 1 / ln 2 in two parts, so that the product is accurate to the last place.
  return log_or_special(x, parts.e + (y * 1.92596299e-8f + y * 1.44269502f));
}
LOCKSTEP_HD inline double log2(double x) { return std::log2(x); }

/// log(1 + x), accurate near 0.
LOCKSTEP_HD inline float log1p(float x) {
  const float u = 1.f + x;
  const float lost = x - (u - 1.f);  // rounding error of u
  const LogParts parts = split_log(u);
  const float low = log1p_poly(parts.f) + (parts.e * 1.42860682e-6f + lost / u);
  const float y = log_or_special(u, parts.e * 0.693145752f + low);
  return std::fabs(x) < 1e-4f ? x - x * x * (0.5f - 0.333333333f * x) : y;  // also keeps the sign of zero
}
LOCKSTEP_HD inline double log1p(double x) { return std::log1p(x); }

/// Hyperbolic tangent.
LOCKSTEP_HD inline float tanh(float x) {
  // (e^2a - 1) / (e^2a + 1) by the polynomial of expm1; above 10 the result rounds to 1.
  const float a = std::fabs(x);
  const ExpParts parts = split_exp(2.f * (a > 10.f ? 10.f : a));
  const float scale = power_of_two(parts.n_bits);
  const float t = scale * expm1_poly(parts.r) + (scale - 1.f);
  return std::copysign(t / (t + 2.f), x);
}
LOCKSTEP_HD inline double tanh(double x) { return std::tanh(x); }

/// 1 / (1 + e^-x), without overflow; small results may be denormal.
template <class T> LOCKSTEP_HD inline T sigmoid(T x) {
  const T e = exp(-std::fabs(x));
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

/// Error function.
LOCKSTEP_HD inline float erf(float x) {
  const float a = std::fabs(x);
  const float s = x * x;
  const float p = polynomial(s, 7.889119297e-5f, -8.020841051e-4f, 5.189535208e-3f, -2.685444430e-2f, 1.128360033e-1f,
                             -3.761262596e-1f, 1.283791661e-1f);  // near 0: x + x p(x^2)
  const float t = a > 4.f ? 4.f : a;                              // further out: 1 - e^q(x)
  const float q = polynomial(t, -2.168906758e-5f, 4.413638089e-4f, -4.204704426e-3f, 2.520865761e-2f, -1.084192395e-1f,
                             -6.332192421e-1f, -1.129578710e+0f, 1.881165663e-4f);
  return a < 0.98f ? x * p + x : std::copysign(1.f - exp_normal(q), x);
}
LOCKSTEP_HD inline double erf(double x) { return std::erf(x); }

/// The f32 sin and cos of this file are valid below this magnitude. Larger arguments need a more precise reduction.
inline constexpr float trig_limit = 1e6f;

/// sin(x + quarter * pi / 2) for |x| < trig_limit, so quarter = 1 gives the cosine.
LOCKSTEP_HD inline float sin_near(float x, int32_t quarter) {
  // The reduction is done in f64. pi / 2 = high + low: high has 33 bits, so n * high is exact.
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52
  const double wide = x;
  const double n = (wide * 0.63661977236758134 + shift) - shift;
  const float r = float((wide - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11);
  const int32_t quadrant = int32_t(n) + quarter;
  const float s = r * r;
  const float sine = polynomial(s, 2.717564485e-6f, -1.983925613e-4f, 8.333329111e-3f, -1.666666716e-1f) * s * r + r;
  const float cosine =
      polynomial(s, -2.720330201e-7f, 2.479943578e-5f, -1.388888340e-3f, 4.166666791e-2f) * s * s + (1.f - 0.5f * s);
  const float y = (quadrant & 1) ? cosine : sine;
  const float signed_y = (quadrant & 2) ? -y : y;
  return quarter == 0 && x == 0.f ? x : signed_y;
}

/// Sine of x in radians, for |x| < trig_limit. CPU kernels compute larger elements in another way (Trigonometric in
/// functors.h). CUDA kernels use sine() of cuda/trigonometry.h instead.
LOCKSTEP_HD inline float sin(float x) { return sin_near(x, 0); }
/// Cosine.
LOCKSTEP_HD inline float cos(float x) { return sin_near(x, 1); }
LOCKSTEP_HD inline double sin(double x) { return std::sin(x); }
LOCKSTEP_HD inline double cos(double x) { return std::cos(x); }

/// fn(a, b) computed in unsigned arithmetic for integers, so that they wrap around.
template <class T, class Fn> LOCKSTEP_HD T wrapping(T a, T b, Fn fn) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return T(fn(U(a), U(b)));
  } else {
    return fn(a, b);
  }
}
/// a + b; integers wrap around.
template <class T> LOCKSTEP_HD T plus(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x + y; });
}
/// a - b; integers wrap around.
template <class T> LOCKSTEP_HD T minus(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x - y; });
}
/// a * b; integers wrap around.
template <class T> LOCKSTEP_HD T times(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x * y; });
}

// Python's // and %: the quotient rounds towards minus infinity, and the remainder has the sign of the divisor. For an
// integer division by 0 callers throw an Error; here it must not trap. The smallest integer divided by -1 wraps around.

/// Remainder with the sign of the dividend, as C's %.
template <class T> LOCKSTEP_HD T left_by(T a, T b) {
  if constexpr (std::is_integral_v<T>) return a % ((b == T(0)) | (b == T(-1)) ? T(1) : b);
  else return std::fmod(a, b);
}
/// True if the remainder `left` has the wrong sign, so that the quotient must be one smaller.
template <class T> LOCKSTEP_HD bool signs_differ(T left, T b) { return (left != T(0)) & ((left < T(0)) != (b < T(0))); }
/// a // b.
template <class T> LOCKSTEP_HD T floor_divide(T a, T b) {
  const T left = left_by(a, b);
  if constexpr (std::is_integral_v<T>) {
    if (b == T(-1)) return minus(T(0), a);
    return (a - left) / (b == T(0) ? T(1) : b) - T(signs_differ(left, b));
  } else {
    const T quotient = std::rint((a - left) / b) - T(signs_differ(left, b)), rough = a / b;
    return b == T(0) ? rough : quotient == T(0) ? std::copysign(T(0), rough) : quotient;
  }
}

}  // namespace lockstep::math
