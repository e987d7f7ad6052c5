// Sampling and the checks that all distributions share. See distribution.h.
#include "extensions/distributions/distribution.h"

#include <cmath>

#include "autograd/loss_common.h"
#include "autograd/tape.h"
#include "extensions/distributions/samplers.h"

namespace lockstep::distributions {

Tensor Distribution::sample(const Shape& shape) const {
  const NoGrad no_grad;
  return draw(joined(joined(shape, batch_), event_)).tensor();
}

Variable Distribution::rsample(const Shape& shape) const {
  LOCKSTEP_CHECK(has_rsample(), "[", name(),
                 "] has no rsample(): its samples are not differentiable functions of its parameters; use sample()");
  return draw(joined(joined(shape, batch_), event_));
}

Variable Distribution::entropy() const {
  fail(str("[", name(), "] has no formula for its entropy; estimate it: mean of -log_prob(x) over x = sample(...)"));
}

Variable Distribution::checked(const Variable& value, const Variable& like, const char* support,
                               const std::function<Tensor(const Tensor&)>& good) const {
  const int events = event_.rank();
  LOCKSTEP_CHECK(value.dim() >= events && Shape(value.shape().end() - events, value.shape().end()) == event_, "[",
                 name(), "] expected values whose shape ends with the event shape ", event_, ", got ", value.shape());
  broadcast_shapes(name(), Shape(value.shape().begin(), value.shape().end() - events), batch_);
  const Variable x = value.dtype() == like.dtype() ? value : value.to(like.dtype());
  const Tensor is_good = good(x.tensor());
  check_values(name(), str("values ", support).c_str(), x.tensor().expand(is_good.shape()), is_good);
  return x;
}

void Distribution::take(std::initializer_list<Given> parameters) {
  std::vector<Parameter> arguments;
  for (const Given& p : parameters) arguments.push_back(p.argument);
  const std::vector<Variable> values = broadcast(name_, arguments);
  batch_ = values[0].shape();
  size_t i = 0;
  for (const Given& p : parameters) p.member = values[i++];
  for (const Given& p : parameters)
    if (p.good) check_values(name_, p.condition, p.member.tensor(), p.good(p.member.tensor()));
}

std::vector<Variable> broadcast(const char* name, const std::vector<Parameter>& parameters) {
  TensorOptions options;
  bool found = false;
  Shape shape;
  for (const Parameter& p : parameters) {
    const Variable& x = p.value;
    if (!x.defined()) continue;
    LOCKSTEP_CHECK(is_floating(x.dtype()), "[", name, "] expected floating parameters, got ", x.dtype(),
                   "; convert them with .to(f32)");
    LOCKSTEP_CHECK(!found || (x.dtype() == options.dtype && x.device() == options.device), "[", name,
                   "] expected parameters of one dtype and device, got ", options.dtype, " on ", options.device,
                   " and ", x.dtype(), " on ", x.device(), "; convert or move one with .to()");
    options = options_of(x), found = true;
    shape = broadcast_shapes(name, shape, x.shape());
  }
  std::vector<Variable> all;
  for (const Parameter& p : parameters)
    all.push_back(p.value.defined() ? p.value.expand(shape) : Variable(full(shape, p.number, options)));
  return all;
}

Tensor above(const Tensor& x, double low) { return gt(x, constant(low, x)); }
Tensor positive(const Tensor& x) { return above(x, 0); }
Tensor not_negative(const Tensor& x) { return ge(x, constant(0, x)); }
Tensor in_unit(const Tensor& x) { return logical_and(not_negative(x), le(x, constant(1, x))); }
Tensor is_finite(const Tensor& x) { return eq(x, x); }  // PyTorch's "real" constraint: not NaN
TensorOptions options_of(const Variable& x) { return {x.dtype(), x.device()}; }
Shape joined(Shape front, const Shape& back) {
  for (const int64_t size : back) front.push_back(size);
  return front;
}
Variable wide(const Variable& x) { return size_of(x.dtype()) == 2 ? x.to(f32) : x; }

Variable x_log_y(const Variable& x, const Variable& y) {
  const Tensor zero = full({}, 0, options_of(x));
  const Tensor none = logical_and(eq(x.tensor(), zero), le(y.tensor(), zero));
  return mul(x, log(where(none, Variable(full({}, 1, options_of(x))), y)));
}

Variable log_gamma_variates(const Variable& shape) {
  const Variable wide = shape.dtype() == f64 ? shape : shape.to(f64);
  const Tensor sample = log_gamma_sample(wide.tensor());
  if (!needs_grad({&wide})) return sample;
  return record("log_gamma_sample", {&wide}, sample, [a = Saved(wide), sample = Saved(sample)](Backward& back) {
    const char* const name = "log_gamma_sample";
    back.give(0, mul(back.grad(), log_gamma_sample_grad(a.get(name), sample.get(name))));
  });
}

}  // namespace lockstep::distributions
