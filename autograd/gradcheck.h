#pragma once
// Gradient check: the tape's gradients against central differences, in f64.
#include <functional>
#include <string>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

struct GradcheckOptions {
  double eps = 1e-6, atol = 1e-5, rtol = 1e-3;
};

/// Checks d fn / d inputs for every f64 input that requires grad, through a random weighting of the output. Returns an
/// empty string when they agree, else which input and element differ and by how much.
std::string gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                      const std::vector<Variable>& inputs, const GradcheckOptions& options = {});

/// The same of its derivative (create_graph), in the inputs and in the gradient that it is given; and whether the
/// recorded derivative has the values of the plain one.
std::string gradgradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                          const std::vector<Variable>& inputs, const GradcheckOptions& options = {});

}  // namespace lockstep
