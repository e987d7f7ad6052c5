#pragma once
// Derivatives of functions, as in torch.autograd.functional and torch.func. A product with the Hessian is the gradient
// of a gradient times a vector (Pearlmutter, 1994). jvp() differentiates vjp(), which is linear in its vector.
#include <functional>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Arguments of a function that is differentiated.
using Inputs = std::vector<Variable>;
/// A function of variables with one result.
using Differentiable = std::function<Variable(const Inputs&)>;

/// create_graph: the results can be differentiated again. Inputs that do not require grad are differentiated too.
struct FunctionalOptions {
  bool create_graph = false;
};

/// For each input of shape I and an output of shape O: d output / d input, of shape O + I. One backward pass per
/// element of the output. Zeros where the output does not depend on an input.
std::vector<Variable> jacobian(const Differentiable& fn, const Inputs& inputs, const FunctionalOptions& options = {});
/// Second derivatives of a one-element output. [i][j]: by inputs i and j, with the shape of input i, then that of j.
std::vector<std::vector<Variable>> hessian(const Differentiable& fn, const Inputs& inputs,
                                           const FunctionalOptions& options = {});

/// Results of vjp(), jvp() and hvp(): the output of fn, and one product per input (jvp: one product).
struct ValueAndProducts {
  Variable value;
  std::vector<Variable> products;
};
/// The output, and for each input v times the Jacobian. v has the output's shape. An output of one element needs no v.
ValueAndProducts vjp(const Differentiable& fn, const Inputs& inputs, const Variable& v = {},
                     const FunctionalOptions& options = {});
/// The output, and the Jacobian times v: one variable of the output's shape. v[i] has the shape of inputs[i].
ValueAndProducts jvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options = {});
/// The value of a function with one element, and the Hessian times v, for each input.
ValueAndProducts hvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options = {});

}  // namespace lockstep
