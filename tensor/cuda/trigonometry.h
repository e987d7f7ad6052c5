#pragma once
// Sine and cosine in f32 for kernels: errors of at most 0.95 units in the last place for any argument; CUDA's own
// functions have up to 2. Large arguments are reduced with integers (Payne and Hanek), others in f64.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tensor/host_device.h"
#include "tensor/math.h"

namespace lockstep::on_cuda {

/// An angle of `quarter` * pi / 2 + (high + low) radians, where |high + low| is at most about pi / 4.
struct Angle {
  float high, low;
  int32_t quarter;
};

/// Returns the 32 bits of 2 / pi from bit `at` on. Bit 0 is the first after the binary point; bits before it are 0.
LOCKSTEP_HD inline uint32_t bits_of_two_over_pi(int32_t at) {
  constexpr uint32_t words[] = {0, 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
  const int32_t word = (at + 32) / 32, shift = (at + 32) % 32;
  return uint32_t((uint64_t(words[word]) << 32 | words[word + 1]) >> (32 - shift));
}

/// Reduces a finite x with |x| >= 2^16 to an Angle.
LOCKSTEP_HD inline Angle reduce_large(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // |x| = m 2^e. The product of m with 96 bits of 2 / pi is enough: earlier bits only add multiples of 4 quarter turns,
  // and later bits are too small.
  const uint64_t m = (bits & 0x7fffffu) | 0x800000u;
  const int32_t first = int32_t(bits >> 23 & 0xffu) - 150 - 2;
  const uint64_t revolutions = (m * bits_of_two_over_pi(first) << 32) + m * bits_of_two_over_pi(first + 32) +
                               (m * bits_of_two_over_pi(first + 64) >> 32);  // in units of 2^-62 quarter turns
  const int32_t quarter = int32_t((revolutions + (uint64_t(1) << 61)) >> 62);
  const double rest = double(int64_t(revolutions << 2)) * 8.5153039502163873e-20;  // pi / 2^65
  const bool negative = bits >> 31 != 0;
  const double angle = negative ? -rest : rest;
  return {float(angle), float(angle - double(float(angle))), negative ? -quarter : quarter};
}

/// sin(x + quarter pi / 2).
LOCKSTEP_HD inline float sine(float x, int32_t quarter) {
  Angle a;
  if (std::fabs(x) < 65536.f) {
    constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52
    const double wide = x;
    const double n = (wide * 0.63661977236758134 + shift) - shift;
    // pi / 2 = high + low: high has 33 bits, so n * high is exact.
    const double rest = (wide - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
    a = {float(rest), float(rest - double(float(rest))), int32_t(n)};
  } else if (std::fabs(x) <= std::numeric_limits<float>::max()) {
    a = reduce_large(x);
  } else {
    return x - x;
  }
  const int32_t quadrant = a.quarter + quarter;
  const float r = a.high, s = r * r, lost = std::fma(r, r, -s);
  float y;
  if (quadrant & 1) {
    const float half = 0.5f * s, rough = 1.f - half;
    const float p = math::polynomial(s, -2.720330201e-7f, 2.479943578e-5f, -1.388888340e-3f, 4.166666791e-2f);
    y = rough + (((1.f - rough) - half) + (s * s * p - (0.5f * lost + r * a.low)));
  } else {
    const float p = math::polynomial(s, 2.717564485e-6f, -1.983925613e-4f, 8.333329111e-3f, -1.666666716e-1f);
    y = r + (a.low + s * r * p);
  }
  if (quadrant & 2) y = -y;
  return quarter == 0 && x == 0.f ? x : y;
}

}  // namespace lockstep::on_cuda
