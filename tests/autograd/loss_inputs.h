#pragma once
// Drawn inputs of operations and losses, for tests.
#include <initializer_list>
#include <vector>

#include "autograd/variable.h"
#include "tensor/ops.h"

namespace lockstep {

using Inputs = std::vector<Variable>;

/// A leaf in f64 with elements drawn from [low, high).
inline Variable sampled(const Shape& shape, double low = -2, double high = 2) {
  const Tensor x = empty(shape, {.dtype = f64});
  uniform_(x, low, high);
  return Variable(x, true);
}

/// An i64 tensor of these values.
inline Tensor integers(std::initializer_list<int64_t> values, const Shape& shape) {
  return Tensor::from<int64_t>(values, shape);
}

}  // namespace lockstep
