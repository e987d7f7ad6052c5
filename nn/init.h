#pragma once
// Parameter initialisation by PyTorch's formulas. Each function fills a parameter's tensor in place from the current
// random generator; a parameter that was built empty is filled later (nn/build_empty.h).
#include "autograd/variable.h"

namespace lockstep::nn::init {

/// U(low, high).
void uniform(const Variable& w, double low, double high);
/// N(mean, deviation^2).
void normal(const Variable& w, double mean = 0, double deviation = 1);
/// Sets every element to `value`.
void constant(const Variable& w, double value);
/// Sets every element to 0.
inline void zeros(const Variable& w) { constant(w, 0); }
/// Sets every element to 1.
inline void ones(const Variable& w) { constant(w, 1); }

/// Fan in and fan out of a weight (out, in, kernel...), including the kernel's size. Error for fewer than 2 dims.
struct Fan {
  int64_t in, out;
};
/// Fan of a weight with this shape.
Fan fan(const Shape& shape);

/// U(-b, b) with b = gain sqrt(3 / fan_in), gain = sqrt(2 / (1 + a^2)) (He et al., 2015). PyTorch's Linear and Conv use
/// a = sqrt(5), which gives b = 1 / sqrt(fan_in).
void kaiming_uniform(const Variable& w, double a = 0);
/// N(0, gain^2 / fan_in), with the gain of kaiming_uniform(), sqrt(2 / (1 + a^2)).
void kaiming_normal(const Variable& w, double a = 0);
/// U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
void xavier_uniform(const Variable& w, double gain = 1);
/// N(0, gain^2 * 2 / (fan_in + fan_out)).
void xavier_normal(const Variable& w, double gain = 1);

}  // namespace lockstep::nn::init
