#pragma once
// Initialisation, PyTorch's formulas. Each fills the tensor of a parameter in place from the current generator.
#include "autograd/variable.h"

namespace lockstep::nn::init {

void uniform(const Variable& w, double low, double high);
void normal(const Variable& w, double mean = 0, double deviation = 1);
void constant(const Variable& w, double value);
inline void zeros(const Variable& w) { constant(w, 0); }
inline void ones(const Variable& w) { constant(w, 1); }

/// Inputs and outputs of one unit: (out, in, ...kernel). Error for fewer than 2 dims.
struct Fan {
  int64_t in, out;
};
Fan fan(const Shape& shape);

/// U(-b, b), b = gain sqrt(3 / fan_in), gain = sqrt(2 / (1 + a^2)) (He et al., 2015). PyTorch's Linear and Conv use a =
/// sqrt(5).
void kaiming_uniform(const Variable& w, double a = 0);
void kaiming_normal(const Variable& w, double a = 0);
/// U(-b, b), b = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)
void xavier_uniform(const Variable& w, double gain = 1);
void xavier_normal(const Variable& w, double gain = 1);
/// Rows, or columns where there are fewer of those, of length gain and at right angles, in all directions alike (Saxe
/// et al., 2013). Dims after the first count as one.
void orthogonal(const Variable& w, double gain = 1);

}  // namespace lockstep::nn::init
