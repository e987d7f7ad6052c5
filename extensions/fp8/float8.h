#pragma once
// 8-bit floats as storage, rounded to nearest even: the codes of CUDA's __nv_fp8_e4m3 and __nv_fp8_e5m2, and of
// PyTorch's float8_e4m3fn and float8_e5m2. Values beyond the range, infinities included, saturate to the largest
// number. NaN of either sign becomes 0x7f, as on GPUs, whose arithmetic drops the sign of NaN.
//
//   format   exponent   mantissa   largest               subnormals
//   e4m3     4 bits     3 bits     448, no infinity      multiples of 2^-9 below 2^-6
//   e5m2     5 bits     2 bits     57344                 multiples of 2^-16 below 2^-14
//
// An e5m2 code is the upper byte of an f16.
#include <bit>
#include <cstdint>

#include "tensor/host_device.h"

namespace lockstep {

/// Formats of 8-bit floats.
enum class Fp8Format : uint8_t { e4m3, e5m2 };

/// The largest finite number of a format.
constexpr float largest_fp8(Fp8Format format) { return format == Fp8Format::e4m3 ? 448.f : 57344.f; }

/// The code nearest to a value.
template <Fp8Format format> LOCKSTEP_HD inline uint8_t encode_fp8(float value) {
  constexpr int mantissa = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
  constexpr uint32_t nan = 0x7f, largest = format == Fp8Format::e4m3 ? 0x7e : 0x7b;
  constexpr int shift = 23 - mantissa;
  constexpr uint32_t first_normal = uint32_t(128 - bias) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  // This float is so large that its last mantissa bit is worth the smallest subnormal of the format. So adding it to a
  // smaller number rounds that number to a multiple of the subnormal.
  constexpr uint32_t steps = uint32_t(127 + 24 - bias - mantissa) << 23;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(steps)) - steps;
  const uint32_t rounded = magnitude + ((1u << (shift - 1)) - 1) + (magnitude >> shift & 1u);
  const uint32_t normal = (rounded >> shift) - (uint32_t(127 - bias) << mantissa);
  const uint32_t code = magnitude < first_normal ? small : normal < largest ? normal : largest;
  return uint8_t(magnitude > 0x7f800000u ? nan : (bits >> 24 & 0x80u) | code);
}

/// The value of a code; exact.
template <Fp8Format format> LOCKSTEP_HD inline float decode_fp8(uint8_t code) {
  constexpr int mantissa = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
  const uint32_t sign = uint32_t(code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (format == Fp8Format::e4m3 ? magnitude == 0x7f : magnitude > 0x7c) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (format == Fp8Format::e5m2 && magnitude == 0x7c) return std::bit_cast<float>(sign | 0x7f800000u);
  constexpr float scale = std::bit_cast<float>(uint32_t(127 + 127 - bias) << 23);
  const float scaled = std::bit_cast<float>(magnitude << (23 - mantissa)) * scale;  // correct for subnormals, too
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

}  // namespace lockstep
