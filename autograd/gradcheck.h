#pragma once
// Gradient check: compares gradients from the tape with central differences in f64.
#include <functional>
#include <string>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Step of the differences, and tolerances: |tape - difference| <= atol + rtol * |difference|.
struct GradcheckOptions {
  double eps = 1e-6, atol = 1e-5, rtol = 1e-3;
};

/// Checks d fn / d inputs for every input that requires grad, which must be an f64 leaf. The output is weighted with
/// random numbers. Returns "" on success, else a message with the first input and element whose two derivatives differ.
std::string gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                      const std::vector<Variable>& inputs, const GradcheckOptions& options = {});

/// Checks second derivatives: gradcheck() of fn's gradient, as a function of the inputs and of the incoming gradient.
/// Also checks that the first derivative is the same with and without create_graph.
std::string gradgradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                          const std::vector<Variable>& inputs, const GradcheckOptions& options = {});

}  // namespace lockstep
