#pragma once
// Activations that quantized products apply to their f32 results. The formulas are those of the operations with these
// names (tensor/functors.h).
#include "tensor/kernel_args.h"
#include "tensor/math.h"

namespace lockstep {

/// activation(x).
LOCKSTEP_HD inline float activate(float x, Activation activation) {
  switch (activation) {
    case Activation::none: return x;
    case Activation::relu: return x < 0.F ? 0.F : x;
    case Activation::gelu_tanh: {  // x / 2 (1 + tanh u) = x / (1 + e^-2u)
      const float minus_2u = x * (float(-1.59576912160573071176) - float(0.07135481627260025) * (x * x));
      return x / (1.F + math::exp_coarse(minus_2u));
    }
    case Activation::gelu_erf: return x * (0.5F * (1.F + math::erf(x * float(0.70710678118654752440))));
    case Activation::silu: return x * math::sigmoid(x);
  }
  return x;
}

}  // namespace lockstep
