// Gamma, Exponential and Beta. See gamma.h.
#include "extensions/distributions/gamma.h"

#include <cmath>

namespace lockstep::distributions {
namespace {

// Smallest positive normal number.
double least_of(DType dtype) { return dtype == f64 ? 0x1p-1022 : dtype == f16 ? 0x1p-14 : 0x1p-126; }
// Largest number below 1.
double max_below_one(DType dtype) {
  return 1 - (dtype == f64 ? 0x1p-53 : dtype == f16 ? 0x1p-11 : dtype == bf16 ? 0x1p-8 : 0x1p-24);
}
Tensor positive(const Tensor& x) { return above(x, 0); }
Tensor in_unit(const Tensor& x) { return logical_and(at_least(x, 0), le(x, full({}, 1, {x.dtype(), x.device()}))); }

}  // namespace

Gamma::Gamma(const Parameter& shape, const Parameter& speed) : Gamma(broadcast("Gamma", {shape, speed})) {}
Gamma::Gamma(const std::vector<Variable>& p) : Distribution(p[0].shape(), {}), concentration(p[0]), rate(p[1]) {
  check_parameter(name(), "concentration > 0", concentration, positive(concentration.tensor()));
  check_parameter(name(), "rate > 0", rate, positive(rate.tensor()));
}
Variable Gamma::log_prob(const Variable& value) const {
  const Variable x = checked(value, rate, ">= 0", [](const Tensor& v) { return at_least(v, 0); });
  return concentration * log(rate) + x_log_y(concentration - 1.0, x) - rate * x - lgamma(concentration);
}
Variable Gamma::entropy() const {
  return concentration - log(rate) + lgamma(concentration) + (1.0 - concentration) * digamma(concentration);
}
Variable Gamma::draw(const Shape& shape) const {
  const Variable speed = wide(rate);
  const Variable x = exp(log_gamma_variates(concentration.expand(shape))).to(speed.dtype()) / speed;
  return clamp(x, least_of(rate.dtype()), INFINITY).to(rate.dtype());
}

Exponential::Exponential(const Parameter& speed) : Exponential(broadcast("Exponential", {speed})) {}
Exponential::Exponential(const std::vector<Variable>& p) : Distribution(p[0].shape(), {}), rate(p[0]) {
  check_parameter(name(), "rate > 0", rate, positive(rate.tensor()));
}
Variable Exponential::log_prob(const Variable& value) const {
  const Variable x = checked(value, rate, ">= 0", [](const Tensor& v) { return at_least(v, 0); });
  return log(rate) - rate * x;
}
Variable Exponential::draw(const Shape& shape) const {
  const Variable speed = wide(rate);
  return (Variable(neg(log1p(neg(rand(shape, options_of(speed)))))) / speed).to(rate.dtype());
}

Beta::Beta(const Parameter& one, const Parameter& zero) : Beta(broadcast("Beta", {one, zero})) {}
Beta::Beta(const std::vector<Variable>& p)
    : Distribution(p[0].shape(), {}), concentration1(p[0]), concentration0(p[1]) {
  check_parameter(name(), "concentration1 > 0", concentration1, positive(concentration1.tensor()));
  check_parameter(name(), "concentration0 > 0", concentration0, positive(concentration0.tensor()));
}
Variable Beta::log_prob(const Variable& value) const {
  const Variable x = checked(value, concentration1, "in [0, 1]", in_unit), a = concentration1, b = concentration0;
  return x_log_y(a - 1.0, x) + x_log_y(b - 1.0, 1.0 - x) + lgamma(a + b) - lgamma(a) - lgamma(b);
}
Variable Beta::entropy() const {
  const Variable a = concentration1, b = concentration0, both = a + b;
  return lgamma(a) + lgamma(b) - lgamma(both) - (a - 1.0) * digamma(a) - (b - 1.0) * digamma(b) +
         (both - 2.0) * digamma(both);
}
Variable Beta::variance() const {
  const Variable total = concentration1 + concentration0;
  return concentration1 * concentration0 / (square(total) * (total + 1.0));
}
Variable Beta::draw(const Shape& shape) const {
  const Variable one = log_gamma_variates(concentration1.expand(shape)),
                 zero = log_gamma_variates(concentration0.expand(shape));
  const DType dtype = concentration1.dtype();
  return clamp(sigmoid(one - zero), least_of(dtype), max_below_one(dtype)).to(dtype);
}

}  // namespace lockstep::distributions
