#pragma once
// Checks one operation's derivatives against differences.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "autograd/gradcheck.h"
#include "tests/autograd/loss_inputs.h"

namespace lockstep {

/// An operation whose derivatives are checked.
using Differentiable = std::function<Variable(const Inputs&)>;
/// Where uniform inputs are drawn from; normal inputs if the ends are equal.
struct Between {
  double low = 0, high = 0;
};
/// f64 inputs of these shapes.
inline Inputs inputs_of(const std::vector<Shape>& shapes, Between range = {}) {
  Inputs inputs;
  for (const Shape& shape : shapes) {
    if (range.low < range.high) inputs.push_back(sampled(shape, range.low, range.high));
    else inputs.emplace_back(randn(shape, {.dtype = f64}), true);
  }
  return inputs;
}

/// Checks the derivatives of fn at inputs of these shapes.
inline void check_gradient(const char* name, const std::vector<Shape>& shapes, const Differentiable& fn) {
  CAPTURE(name);
  CHECK(gradcheck(fn, inputs_of(shapes)) == "");
}
/// Checks the derivatives of these derivatives, too.
inline void check_gradients(const char* name, const std::vector<Shape>& shapes, Between range,
                            const Differentiable& fn) {
  CAPTURE(name);
  const Inputs inputs = inputs_of(shapes, range);
  CHECK(gradcheck(fn, inputs) == "");
  CHECK(gradgradcheck(fn, inputs) == "");
}
/// The same at normal inputs.
inline void check_gradients(const char* name, const std::vector<Shape>& shapes, const Differentiable& fn) {
  check_gradients(name, shapes, {}, fn);
}

/// The same for an expression of x[0], x[1] and so on, whose shapes follow.
#define CHECK_GRADIENT(expression, ...) \
  check_gradient(#expression, {__VA_ARGS__}, [&](const lockstep::Inputs& x) { return expression; })
#define CHECK_GRADIENTS(expression, ...) \
  check_gradients(#expression, {__VA_ARGS__}, [&](const lockstep::Inputs& x) { return expression; })

}  // namespace lockstep
