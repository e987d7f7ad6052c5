#pragma once
// Derivatives of functions, as in torch.autograd.functional and torch.func. A product with the Hessian is the gradient
// of a gradient times a vector (Pearlmutter, 1994). jvp() differentiates vjp(fn, inputs, v) with respect to v.
#include <functional>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Arguments of a function. It is differentiated with respect to each of them, even if that does not require grad.
using Inputs = std::vector<Variable>;
/// A function of variables with one result.
using Differentiable = std::function<Variable(const Inputs&)>;

/// Options of the functions below. With create_graph, their results can be differentiated again.
struct FunctionalOptions {
  bool create_graph = false;
};

/// For each input, d output / d input: its shape is the output's shape followed by the input's. One backward pass per
/// element of the output. Zeros where the output does not depend on an input.
std::vector<Variable> jacobian(const Differentiable& fn, const Inputs& inputs, const FunctionalOptions& options = {});
/// Second derivatives of a one-element output. Element [i][j] is the derivative by inputs[i] and inputs[j]; its shape
/// is the shape of inputs[i] followed by the shape of inputs[j].
std::vector<std::vector<Variable>> hessian(const Differentiable& fn, const Inputs& inputs,
                                           const FunctionalOptions& options = {});

/// Results of vjp(), jvp() and hvp(): the output of fn, and one product per input (from jvp(): one product in all).
struct ValueAndProducts {
  Variable value;
  std::vector<Variable> products;
};
/// The output, and for each input the product of v and the Jacobian. v has the output's shape, and may be undefined if
/// the output has one element.
ValueAndProducts vjp(const Differentiable& fn, const Inputs& inputs, const Variable& v = {},
                     const FunctionalOptions& options = {});
/// The output, and the Jacobian times v: one variable of the output's shape. v[i] has the shape of inputs[i].
ValueAndProducts jvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options = {});
/// For a function that returns one element: its value, and for each input the product of the Hessian and v.
ValueAndProducts hvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options = {});

}  // namespace lockstep
