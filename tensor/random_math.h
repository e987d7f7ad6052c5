#pragma once
// Converts the words of philox() to numbers, with the same bits on every processor and device: files that use this are
// compiled without fused multiply-add (meson.build), and call nothing whose last bits depend on the library. Internal.
#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/convert.h"

namespace lockstep::random_math {

/// Uniform in [0, 1) with 24 random bits.
LOCKSTEP_HD inline float unit(uint32_t word) { return float(int32_t(word >> 8)) * 0x1p-24f; }
/// Uniform in [0, 1) with 53 random bits.
LOCKSTEP_HD inline double unit(uint32_t low, uint32_t high) {
  return double(int64_t((uint64_t(high) << 32 | low) >> 11)) * 0x1p-53;
}

/// Maps [0, 1) to [base, base + width). Rounding could give the upper end itself, so results are limited to `highest`.
template <class T> LOCKSTEP_HD inline T scaled(T unit, T base, T width, T highest) {
  const T value = base + width * unit;
  return value < highest ? value : highest;
}

/// The largest T that is below `high` and at least `low`; `low` if there is none. Returned as float for f16 and bf16.
template <class T> auto max_below(double low, double high) {
  using C = std::conditional_t<is_half<T>, float, T>;
  const C base = C(low), end = C(high);
  C highest = end > base ? std::nextafter(end, base) : base;
  if constexpr (is_half<T>) {
    while (C(T(highest)) >= end && highest > base) highest = std::nextafter(highest, base);
  }
  return highest;
}

/// Uniform integer in [low, low + range) from 64 bits; the bias is below range / 2^64.
LOCKSTEP_HD inline int64_t uniform_integer(uint32_t low_word, uint32_t high_word, int64_t low, uint64_t range) {
  const uint64_t word = uint64_t(high_word) << 32 | low_word;
  return int64_t(uint64_t(low) + uint64_t((unsigned __int128)(word)*range >> 64));
}

/// Natural logarithm of x in (0, 1], to about one unit in the last place: x = 2^e m, and
/// log m = 2 atanh((m - 1) / (m + 1)).
LOCKSTEP_HD inline float log_unit(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x) - 0x3f3504f3;  // chosen so that m lies in [sqrt(1/2), sqrt(2))
  const float e = float(bits >> 23);
  const float m = std::bit_cast<float>((bits & 0x007fffff) + 0x3f3504f3);
  const float s = (m - 1) / (m + 1), s2 = s * s;
  const float tail = s2 * (0.666666667f + s2 * (0.4f + s2 * (0.285714286f + s2 * (0.222222222f + s2 * 0.181818182f))));
  return e * 0.693147181f + (2 * s + s * tail);
}
LOCKSTEP_HD inline double log_unit(double x) {
  const int64_t bits = std::bit_cast<int64_t>(x) - 0x3fe6a09e667f3bcd;
  const double e = double(bits >> 52);
  const double m = std::bit_cast<double>((bits & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double tail = 0;
  for (int k = 11; k > 0; --k) tail = s2 * (2.0 / (2 * k + 1) + tail);
  return e * 0.6931471805599453 + (2 * s + s * tail);
}

/// Sine and cosine of an angle.
template <class T> struct SineCosine { T sine, cosine; };
/// Sine and cosine of an angle plus `quarter` quarter turns, from the sine s and cosine c of the angle.
template <class T> LOCKSTEP_HD inline SineCosine<T> turned(int32_t quarter, T s, T c) {
  const bool swap = quarter & 1;
  const T a = swap ? c : s, b = swap ? s : c;
  return {quarter & 2 ? -a : a, (quarter + 1) & 2 ? -b : b};
}
/// Sine and cosine of 2 pi t for t in [0, 1), by Taylor polynomials on an eighth of a turn.
LOCKSTEP_HD inline SineCosine<float> sine_cosine(float t) {
  const int32_t quarter = int32_t(t * 4 + 0.5f);
  const float x = (t - float(quarter) * 0.25f) * 6.28318531f, x2 = x * x;
  const float s = x + x * x2 * (-1.66666667e-1f + x2 * (8.33333333e-3f + x2 * (-1.98412698e-4f + x2 * 2.75573192e-6f)));
  const float c = 1 + x2 * (-0.5f + x2 * (4.16666667e-2f + x2 * (-1.38888889e-3f + x2 * 2.48015873e-5f)));
  return turned(quarter, s, c);
}
LOCKSTEP_HD inline SineCosine<double> sine_cosine(double t) {
  const int32_t quarter = int32_t(t * 4 + 0.5);
  const double x = (t - double(quarter) * 0.25) * 6.283185307179586, x2 = x * x;
  double s = 1, c = 1;  // Horner from the last term: 1 - x^2 / (n (n - 1)) (1 - ...)
  for (int n = 17; n > 1; n -= 2) s = 1 - x2 / (n * (n - 1)) * s;
  for (int n = 18; n > 1; n -= 2) c = 1 - x2 / (n * (n - 1)) * c;
  return turned(quarter, x * s, c);
}

/// Two normally distributed numbers.
template <class T> struct Pair { T first, second; };
/// Box-Muller transform: two normal numbers from two uniform numbers, u in (0, 1] and t in [0, 1).
template <class T> LOCKSTEP_HD inline Pair<T> normals(T u, T t, T mean, T deviation) {
  const T square = T(-2) * log_unit(u);
  const T radius = std::sqrt(square > T(0) ? square : T(0));
  const SineCosine<T> angle = sine_cosine(t);
  return {mean + deviation * (radius * angle.cosine), mean + deviation * (radius * angle.sine)};
}
/// Two normal numbers from random words. f32 uses all 32 bits of the first word plus a half, so that the tail reaches
/// 6.7 standard deviations and the logarithm never sees 0.
LOCKSTEP_HD inline Pair<float> normals_of(uint32_t a, uint32_t b, float mean, float deviation) {
  return normals((float(a) + 0.5f) * 0x1p-32f, unit(b), mean, deviation);
}
LOCKSTEP_HD inline Pair<double> normals_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d, double mean,
                                           double deviation) {
  return normals(1 - unit(a, b), unit(c, d), mean, deviation);
}

}  // namespace lockstep::random_math
