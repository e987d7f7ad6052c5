#pragma once
// The loops of 1-bit compression, on the CPU. Numbers become signs, eight to a byte (bit k of byte b is element 8 b +
// k; 1: not negative), and come back as ±scale. Results do not depend on the number of threads. Internal.
#include <cstdint>

#include "extensions/deepspeed/onebit/compressed.h"

namespace lockstep::onebit {

/// error += x (x null: adds nothing). Returns the sum from which scale_of() computes the scale: Σ error² or Σ |error|.
double add_error(const float* x, float* error, int64_t n, Scale scale);
/// Returns the scale of n elements from the sum that add_error() returned.
float scale_of(double sum, int64_t n, Scale scale);

/// Writes the signs of `value` to `bits`, and leaves the error in `value`: value -= ±scale. Unused bits of the last
/// byte are 0.
void take_signs(float* value, float scale, int64_t n, uint8_t* bits);
/// out = ±scale, with the signs in `bits`
void put_signs(const uint8_t* bits, float scale, int64_t n, float* out);
/// out += ±scale, with the signs in `bits`
void add_signs(const uint8_t* bits, float scale, int64_t n, float* out);

}  // namespace lockstep::onebit
