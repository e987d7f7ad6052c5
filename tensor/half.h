#pragma once
// 16-bit floats as storage, with the bits of CUDA's __half and __nv_bfloat16. Arithmetic is done in f32; on the GPU one
// instruction converts.
#include <bit>
#include <cstdint>

#include "tensor/host_device.h"

namespace lockstep {

/// IEEE binary16. Conversion from float rounds to nearest even and keeps NaN, infinities and subnormals.
struct Half {
  uint16_t bits = 0;

  Half() = default;
  LOCKSTEP_HD explicit Half(float value) : bits(encode(value)) {}
  LOCKSTEP_HD explicit operator float() const { return decode(bits); }

  /// The float with the value of these bits; exact.
  LOCKSTEP_HD static float decode(uint16_t h) {
#if defined(__CUDA_ARCH__)
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(h));
    return wide;
#else
    // Shift exponent and mantissa into place, then let one float multiplication rescale subnormals exactly.
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
#endif
  }

  /// The bits of the nearest Half.
  LOCKSTEP_HD static uint16_t encode(float value) {
#if defined(__CUDA_ARCH__)
    uint16_t rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    const uint32_t f = std::bit_cast<uint32_t>(value);
    const uint16_t sign = uint16_t((f >> 16) & 0x8000u);
    const uint32_t magnitude = f & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);   // NaN
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // overflows to infinity
    if (magnitude < 0x38800000u) {                                  // subnormal: float addition rounds
      const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
      return uint16_t(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000u));
    }
    return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
#endif
  }
};

/// bfloat16, the upper half of a float. Conversion from float rounds to nearest even and keeps NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  LOCKSTEP_HD explicit BFloat16(float value) : bits(encode(value)) {}
  LOCKSTEP_HD explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }

  /// The bits of the nearest BFloat16.
  LOCKSTEP_HD static uint16_t encode(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    const uint32_t f = std::bit_cast<uint32_t>(value);
    if ((f & 0x7fffffffu) > 0x7f800000u) return uint16_t((f >> 16) | 0x40u);
    return uint16_t((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
#endif
  }
};

}  // namespace lockstep
