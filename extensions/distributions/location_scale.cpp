// Normal, LogNormal, Laplace, Uniform and StudentT. See distributions.h.
#include "extensions/distributions/distributions.h"

#include <cmath>
#include <numbers>

namespace lockstep::distributions {
namespace {

const double log_two_pi = std::log(2 * std::numbers::pi);

// Distance from 1 to the next larger number.
double epsilon(DType dtype) {
  return dtype == f64 ? 0x1p-52 : dtype == f16 ? 0x1p-10 : dtype == bf16 ? 0x1p-7 : 0x1p-23;
}

}  // namespace

Normal::Normal(const Parameter& mean, const Parameter& deviation) : Distribution("Normal") {
  take({{mean, loc}, {deviation, scale, "scale > 0", positive}});
}
Variable Normal::log_prob(const Variable& value) const {
  const Variable x = checked(value, loc, "without NaN", is_finite);
  return square(div(x - loc, scale)) * -0.5 - log(scale) - 0.5 * log_two_pi;
}
Variable Normal::entropy() const { return log(scale) + (0.5 + 0.5 * log_two_pi); }
Variable Normal::draw_wide(const Shape& shape) const {
  const Variable mean = wide(loc);
  return mean + wide(scale) * Variable(randn(shape, options_of(mean)));
}
Variable Normal::draw(const Shape& shape) const { return draw_wide(shape).to(loc.dtype()); }

LogNormal::LogNormal(const Parameter& loc, const Parameter& scale)
    : Distribution("LogNormal", broadcast("LogNormal", {loc, scale})[0].shape()), base(loc, scale) {}
Variable LogNormal::log_prob(const Variable& value) const {
  const Variable x = log(checked(value, base.loc, "> 0", positive));
  return base.log_prob(x) - x;
}
Variable LogNormal::variance() const {
  const Variable square_scale = square(base.scale);
  return expm1(square_scale) * exp(base.loc * 2.0 + square_scale);
}
Variable LogNormal::draw(const Shape& shape) const { return exp(base.draw_wide(shape)).to(base.loc.dtype()); }

Laplace::Laplace(const Parameter& mean, const Parameter& width) : Distribution("Laplace") {
  take({{mean, loc}, {width, scale, "scale > 0", positive}});
}
Variable Laplace::log_prob(const Variable& value) const {
  const Variable x = checked(value, loc, "without NaN", is_finite);
  return neg(log(scale * 2.0)) - div(abs(x - loc), scale);
}
Variable Laplace::draw(const Shape& shape) const {
  const Variable mean = wide(loc);
  const Tensor u = empty(shape, options_of(mean));
  uniform_(u, epsilon(u.dtype()) - 1, 1);  // in (-1, 1)
  return (mean - wide(scale) * Variable(mul(sign(u), log1p(neg(abs(u)))))).to(loc.dtype());
}

Uniform::Uniform(const Parameter& from, const Parameter& to) : Distribution("Uniform") {
  take({{from, low}, {to, high}});
  check_parameter(name(), "low < high, that is high - low > 0", high - low, lt(low, high));
}
Variable Uniform::log_prob(const Variable& value) const {
  const Variable x = checked(value, low, "in [low, high]", [this](const Tensor& v) {
    return logical_and(ge(v, low.tensor()), le(v, high.tensor()));
  });
  const Tensor inside = logical_and(ge(x.tensor(), low.tensor()), lt(x.tensor(), high.tensor()));
  return log(inside.to(low.dtype())) - log(high - low);
}
Variable Uniform::draw(const Shape& shape) const {
  const Variable from = wide(low), to = wide(high);
  const Variable x = (from + (to - from) * Variable(rand(shape, options_of(from)))).to(low.dtype());
  // Rounding may give `high`, which is outside of [low, high). Then the result is the largest number below `high`:
  // `high` minus a little more than half a unit in the last place is rounded to that number.
  const double half = 0.51 * epsilon(low.dtype()), least = low.dtype() == f16 ? 0x1p-24 : 0x1p-126;
  const Variable before = (to - clamp(abs(to) * half, least, INFINITY)).to(low.dtype());
  return where(lt(x, high), x, before);
}

StudentT::StudentT(const Parameter& freedom, const Parameter& mean, const Parameter& width) : Distribution("StudentT") {
  take({{freedom, df, "df > 0", positive}, {mean, loc}, {width, scale, "scale > 0", positive}});
}
Variable StudentT::log_prob(const Variable& value) const {
  const Variable x = checked(value, loc, "without NaN", is_finite);
  const Variable more = (df + 1.0) * 0.5;
  const Variable weight =
      log(scale) + log(df) * 0.5 + 0.5 * std::log(std::numbers::pi) + lgamma(df * 0.5) - lgamma(more);
  return neg(more * log1p(div(square(div(x - loc, scale)), df))) - weight;
}
Variable StudentT::entropy() const {
  const Variable half = df * 0.5, more = (df + 1.0) * 0.5;
  const Variable log_beta = lgamma(half) + std::lgamma(0.5) - lgamma(more);
  return log(scale) + more * (digamma(more) - digamma(half)) + log(df) * 0.5 + log_beta;
}
Variable StudentT::mean() const { return masked_fill(loc, logical_not(above(df.tensor(), 1)), NAN); }
Variable StudentT::variance() const {
  const Tensor finite = above(df.tensor(), 2);
  const Variable safe = masked_fill(df, logical_not(finite), 3);
  const Variable variance_or_inf = masked_fill(square(scale) * safe / (safe - 2.0), logical_not(finite), INFINITY);
  return masked_fill(variance_or_inf, logical_not(above(df.tensor(), 1)), NAN);
}
Variable StudentT::draw(const Shape& shape) const {
  // t = x / sqrt(c / df) with x normal and c chi-squared with df degrees of freedom; c / 2 is a gamma variate of shape
  // df / 2.
  const Variable half = wide(df).expand(shape) * 0.5, x(randn(shape, options_of(half)));
  const Variable log_ratio = log_gamma_variates(half).to(half.dtype()) - log(half);
  return (wide(loc) + wide(scale) * x * exp(log_ratio * -0.5)).to(loc.dtype());
}

}  // namespace lockstep::distributions
