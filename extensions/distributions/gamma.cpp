// Gamma, Exponential and Beta. See distributions.h.
#include "extensions/distributions/distributions.h"

#include <cmath>

namespace lockstep::distributions {
namespace {

// Smallest positive normal number.
double least_of(DType dtype) { return dtype == f64 ? 0x1p-1022 : dtype == f16 ? 0x1p-14 : 0x1p-126; }
// Largest number below 1.
double max_below_one(DType dtype) {
  return 1 - (dtype == f64 ? 0x1p-53 : dtype == f16 ? 0x1p-11 : dtype == bf16 ? 0x1p-8 : 0x1p-24);
}

}  // namespace

Gamma::Gamma(const Parameter& shape, const Parameter& speed) : Distribution("Gamma") {
  take({{shape, concentration, "concentration > 0", positive}, {speed, rate, "rate > 0", positive}});
}
Variable Gamma::log_prob(const Variable& value) const {
  const Variable x = checked(value, rate, ">= 0", not_negative);
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

Exponential::Exponential(const Parameter& speed) : Distribution("Exponential") {
  take({{speed, rate, "rate > 0", positive}});
}
Variable Exponential::log_prob(const Variable& value) const {
  return log(rate) - rate * checked(value, rate, ">= 0", not_negative);
}
Variable Exponential::draw(const Shape& shape) const {
  const Variable speed = wide(rate);
  return (Variable(neg(log1p(neg(rand(shape, options_of(speed)))))) / speed).to(rate.dtype());
}

Beta::Beta(const Parameter& one, const Parameter& zero) : Distribution("Beta") {
  take({{one, concentration1, "concentration1 > 0", positive}, {zero, concentration0, "concentration0 > 0", positive}});
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
