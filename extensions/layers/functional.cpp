// Jacobian, Hessian, and their products with vectors. See functional.h.
#include "extensions/layers/functional.h"

#include "autograd/ops.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

/// A call of fn, recorded for backward: the inputs to differentiate by, and the output.
struct Call {
  Inputs inputs;
  Variable output;

  Call(const char* op, const Differentiable& fn, const Inputs& given, bool keep) {
    const EnableGrad recording;
    LOCKSTEP_CHECK(!given.empty(), "[", op, "] expected at least one input, got none; pass some");
    for (const Variable& x : given) {
      LOCKSTEP_CHECK(x.defined() && is_floating(x.dtype()), "[", op, "] expected floating inputs, got ",
                     x.defined() ? str(x.dtype(), "; convert them with .to(f32)") : "an undefined one; leave it out");
      // A new variable, because fn may also read the caller's variable directly. With create_graph the new variable
      // stays on the caller's graph.
      inputs.push_back(keep && x.requires_grad() ? x.view(x.shape()) : Variable(x.tensor(), true));
    }
    output = fn(inputs);
    LOCKSTEP_CHECK(output.defined(), "[", op, "] expected the function to return a defined variable; return one");
  }
  /// The output, which stays on the graph only if create_graph is set.
  Variable value(const FunctionalOptions& options) const { return options.create_graph ? output : output.detach(); }
};

/// The gradients of `output` by each input, if `v` is the gradient of `output`; zeros for an input on which `output`
/// does not depend.
std::vector<Variable> gradients_or_zeros(const Variable& output, const Inputs& inputs, bool create_graph,
                                         const Variable& v = {}, bool retain_graph = false) {
  std::vector<Variable> grads(inputs.size());
  const GradOptions options{
      .grad_outputs = {v}, .retain_graph = retain_graph, .create_graph = create_graph, .allow_unused = true};
  if (output.requires_grad()) grads = grad(output, inputs, options);
  for (size_t i = 0; i < grads.size(); ++i)
    if (!grads[i].defined()) grads[i] = zeros_like(inputs[i].tensor());
  return grads;
}

void check_vectors(const char* op, const Inputs& inputs, const Inputs& v) {
  LOCKSTEP_CHECK(v.size() == inputs.size(), "[", op, "] expected a vector for each of ", inputs.size(), " inputs, got ",
                 v.size(), "; pass one per input");
  for (size_t i = 0; i < v.size(); ++i)
    LOCKSTEP_CHECK(v[i].shape() == inputs[i].shape() && v[i].dtype() == inputs[i].dtype(), "[", op,
                   "] expected vector ", i, " like its input, ", inputs[i].dtype(), " ", inputs[i].shape(), ", got ",
                   v[i].dtype(), " ", v[i].shape(), "; convert or reshape it");
}

/// Directional derivative: the sum of slopes[i] * v[i].
Variable along(const std::vector<Variable>& slopes, const Inputs& v) {
  Variable total;
  for (size_t i = 0; i < slopes.size(); ++i) {
    const Variable part = sum(mul(slopes[i], v[i]));
    total = total.defined() ? add(total, part) : part;
  }
  return total;
}

void check_single(const char* op, const Variable& output) {
  LOCKSTEP_CHECK(output.numel() == 1, "[", op, "] expected a function that returns one element, got ", output.shape(),
                 std::string_view(op) == "vjp" ? "; pass v" : "; sum() it");
}

/// The gradients of every element of `output`: one tensor per input, of output's shape followed by the input's shape.
std::vector<Variable> rows_of(const Variable& output, const Inputs& inputs, bool create_graph) {
  const int64_t n = output.numel();
  const Variable flat = output.reshape({n});
  std::vector<std::vector<Variable>> rows(inputs.size());
  for (int64_t i = 0; i < n; ++i) {
    auto row = gradients_or_zeros(flat.select(0, i), inputs, create_graph, {}, true);
    for (size_t k = 0; k < inputs.size(); ++k) rows[k].push_back(std::move(row[k]));
  }
  std::vector<Variable> result;
  for (size_t k = 0; k < inputs.size(); ++k) {
    Shape shape = output.shape();
    for (int64_t size : inputs[k].shape()) shape.push_back(size);
    const TensorOptions like{inputs[k].dtype(), inputs[k].device()};
    result.push_back(n == 0 ? Variable(zeros(shape, like)) : stack(rows[k], 0).reshape(shape));
  }
  return result;
}

}  // namespace

std::vector<Variable> jacobian(const Differentiable& fn, const Inputs& inputs, const FunctionalOptions& options) {
  const Call call("jacobian", fn, inputs, options.create_graph);
  const EnableGrad recording;
  return rows_of(call.output, call.inputs, options.create_graph);
}

std::vector<std::vector<Variable>> hessian(const Differentiable& fn, const Inputs& inputs,
                                           const FunctionalOptions& options) {
  const Call call("hessian", fn, inputs, options.create_graph);
  check_single("hessian", call.output);
  const EnableGrad recording;
  std::vector<std::vector<Variable>> result;
  for (const Variable& slope : gradients_or_zeros(call.output, call.inputs, true))
    result.push_back(rows_of(slope, call.inputs, options.create_graph));
  return result;
}

ValueAndProducts vjp(const Differentiable& fn, const Inputs& inputs, const Variable& v,
                     const FunctionalOptions& options) {
  const Call call("vjp", fn, inputs, options.create_graph);
  if (v.defined()) check_vectors("vjp", {call.output}, {v});
  else check_single("vjp", call.output);
  return {call.value(options), gradients_or_zeros(call.output, call.inputs, options.create_graph, v)};
}

ValueAndProducts jvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options) {
  const Call call("jvp", fn, inputs, options.create_graph);
  check_vectors("jvp", call.inputs, v);
  const EnableGrad recording;
  // u^T J v is linear in u: its gradient with respect to u is J v for any u.
  const Variable u(zeros_like(call.output.tensor()), true);
  const auto slopes = gradients_or_zeros(call.output, call.inputs, true, u);
  return {call.value(options), gradients_or_zeros(along(slopes, v), {u}, options.create_graph)};
}

ValueAndProducts hvp(const Differentiable& fn, const Inputs& inputs, const Inputs& v,
                     const FunctionalOptions& options) {
  const Call call("hvp", fn, inputs, options.create_graph);
  check_single("hvp", call.output);
  check_vectors("hvp", call.inputs, v);
  const EnableGrad recording;
  const auto slopes = gradients_or_zeros(call.output, call.inputs, true);
  return {call.value(options), gradients_or_zeros(along(slopes, v), call.inputs, options.create_graph)};
}

}  // namespace lockstep
