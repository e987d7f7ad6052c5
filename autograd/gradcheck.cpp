// Gradient check by central differences: (f(x + eps) - f(x - eps)) / (2 eps), element by element.
#include "autograd/gradcheck.h"

#include <cmath>

#include "autograd/ops.h"
#include "autograd/split_backward.h"
#include "autograd/tape.h"
#include "tensor/random.h"

namespace lockstep {
namespace {

/// Returns the index along each dim of the element with number `flat` in row-major order.
Dims place_of(const Shape& shape, int64_t flat) {
  Dims place = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    place[d] = flat % shape[d];
    flat /= shape[d];
  }
  return place;
}

/// A view of one element, to read and write it on any device.
Tensor element_of(const Tensor& x, const Dims& place) {
  int64_t at = x.offset();
  for (int d = 0; d < place.rank(); ++d) at += place[d] * x.strides()[d];
  return x.as_strided({}, {}, at);
}

}  // namespace

std::string gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                      const std::vector<Variable>& inputs, const GradcheckOptions& options) {
  std::vector<Variable> wanted;
  for (const Variable& input : inputs) {
    if (!input.requires_grad()) continue;
    LOCKSTEP_CHECK(input.dtype() == f64 && input.is_leaf(),
                   "[gradcheck] expected inputs that require grad to be f64 leaves, got ", input.dtype(),
                   input.is_leaf() ? "" : ", the result of an operation", "; use Variable(tensor.to(f64), true)");
    for (int d = 0; d < input.dim(); ++d) {
      LOCKSTEP_CHECK(input.size(d) <= 1 || input.tensor().strides()[d] != 0,
                     "[gradcheck] expected inputs without repeated elements, got strides ", input.tensor().strides(),
                     "; make them from contiguous() tensors");
    }
    wanted.push_back(input);
  }
  LOCKSTEP_CHECK(!wanted.empty(), "[gradcheck] expected an input that requires grad, got none; call requires_grad_()");

  const RandomState random = random_state();
  const auto run = [&] {
    set_random_state(random);  // every run draws the same numbers
    return fn(inputs);
  };
  const Variable output = run();
  LOCKSTEP_CHECK(output.dtype() == f64, "[gradcheck] expected an f64 output, got ", output.dtype(), "; use .to(f64)");
  if (!output.requires_grad()) return "the output does not require grad; compute it from inputs that do";
  const Tensor weights = empty(output.shape(), {.dtype = f64, .device = output.device()});
  uniform_(weights, 0.5, 1.5);
  const std::vector<Tensor> grads = gradients(output, wanted, weights);
  const NoGrad no_tape;
  const auto value = [&] { return sum(mul(run().tensor(), weights)).item(); };

  for (size_t i = 0; i < wanted.size(); ++i) {
    const Tensor& x = wanted[i].tensor();
    const Tensor& analytic = grads[i];
    if (analytic.defined() && !(analytic.shape() == x.shape()))
      return str("input ", i, ": correct the shape of its gradient, ", analytic.shape(), ", to ", x.shape());
    for (int64_t flat = 0; flat < x.numel(); ++flat) {
      const Dims place = place_of(x.shape(), flat);
      const Tensor at = element_of(x, place);
      const double kept = at.item();
      at.fill_(kept + options.eps);
      const double up = value();
      at.fill_(kept - options.eps);
      const double down = value();
      at.fill_(kept);
      const double numeric = (up - down) / (2 * options.eps),
                   tape = analytic.defined() ? element_of(analytic, place).item() : 0;
      if (!(std::fabs(tape - numeric) <= options.atol + options.rtol * std::fabs(numeric)))
        return str("input ", i, ", element ", place, ": the tape gives ", tape, ", differences give ", numeric,
                   "; correct the derivative, or move the inputs away from kinks of fn");
    }
  }
  set_random_state(random);
  return "";
}

std::string gradgradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                          const std::vector<Variable>& inputs, const GradcheckOptions& options) {
  std::vector<Variable> wanted;
  for (const Variable& input : inputs)
    if (input.requires_grad()) wanted.push_back(input);
  const RandomState random = random_state();
  const Variable output = fn(inputs);
  if (!output.requires_grad()) return "the output does not require grad; compute it from inputs that do";
  Variable v(empty(output.shape(), {.dtype = output.dtype(), .device = output.device()}), true);
  uniform_(v.tensor(), 0.5, 1.5);

  const std::vector<Tensor> plain = gradients(output, wanted, v.tensor(), true);
  const std::vector<Variable> recorded =
      grad(output, wanted, {.grad_outputs = {v}, .create_graph = true, .allow_unused = true});
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (plain[i].defined() != recorded[i].defined())
      return str("input ", i, ": only run(", plain[i].defined() ? "" : "Recorded",
                 "Backward&) gives a gradient; give both");
    if (!plain[i].defined() || plain[i].numel() == 0) continue;
    const double off = max(abs(sub(plain[i], recorded[i].tensor()))).item(), size = max(abs(plain[i])).item();
    if (!(off <= 1e-9 * (1 + size)))
      return str("input ", i, ": the recorded derivative is off by ", off, " of ", size, "; correct it");
  }

  std::vector<Variable> all = inputs;
  all.push_back(v);
  set_random_state(random);
  return gradcheck(
      [&](const std::vector<Variable>& x) {
        const EnableGrad recording;
        const Variable y = fn(std::vector<Variable>(x.begin(), x.end() - 1));
        std::vector<Variable> flat{x.back().reshape({x.back().numel()})};
        for (const Variable& g :
             grad(y, wanted, {.grad_outputs = {x.back()}, .create_graph = true, .allow_unused = true}))
          if (g.defined()) flat.push_back(g.reshape({g.numel()}).to(v.device()));
        return cat(flat, 0);
      },
      all, options);
}

}  // namespace lockstep
