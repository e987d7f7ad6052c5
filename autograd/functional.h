#pragma once
// Derivatives of functions, as torch.autograd.functional and torch.func have them. A product with the Hessian is the
// gradient of a gradient times a vector (Pearlmutter, 1994); jvp differentiates vjp in the vector it is linear in.
#include <functional>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

using Inputs = std::vector<Variable>;
using Differentiable = std::function<Variable(const Inputs&)>;

/// create_graph: what they give can be differentiated again. Inputs that do not require grad are taken as if they did.
struct FunctionalOptions {
  bool create_graph = false;
};

/// For each input (shape I) of fn, of output shape O: d output / d input, of shape O + I; a row is one backward pass.
/// Zeros where the output does not depend on an input.
std::vector<Variable> jacobian(const Differentiable& fn, const Inputs& inputs, const FunctionalOptions& options = {});
/// of a fn of one element: [i][j] of shape I_i + I_j
std::vector<std::vector<Variable>> hessian(const Differentiable& fn, const Inputs& inputs,
                                           const FunctionalOptions& options = {});

struct ValueAndProducts {
  Variable value;
  std::vector<Variable> products;
};
/// The output, and v (like it; of one element it may be left out: 1) times the Jacobian, for each input.
ValueAndProducts vjp(const Differentiable& fn, const Inputs& inputs, const Variable& v = {},
                     const FunctionalOptions& options = {});
/// The output, and the Jacobian times v, one for each input and like it: one variable like the output.
ValueAndProducts jvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options = {});
/// Of a fn of one element: its value, and the Hessian times v, for each input.
ValueAndProducts hvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options = {});

}  // namespace lockstep
