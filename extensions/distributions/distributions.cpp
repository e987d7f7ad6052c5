// Normal to Poisson: sampling, densities, entropies. See distributions.h; divergences are in kl_divergence.cpp.
#include "extensions/distributions/distributions.h"

#include <cmath>
#include <numbers>

#include "autograd/loss_common.h"
#include "extensions/distributions/samplers.h"
#include "extensions/linear_algebra/linear_algebra.h"
#include "extensions/operations/operations.h"

namespace lockstep::distributions {
namespace {

const double log_two_pi = std::log(2 * std::numbers::pi);

// Distance from 1 to the next larger number.
double epsilon(DType dtype) {
  return dtype == f64 ? 0x1p-52 : dtype == f16 ? 0x1p-10 : dtype == bf16 ? 0x1p-7 : 0x1p-23;
}

// Smallest positive normal number.
double least_of(DType dtype) { return dtype == f64 ? 0x1p-1022 : dtype == f16 ? 0x1p-14 : 0x1p-126; }

Shape leading(const char* name, const Variable& x, int events) {
  LOCKSTEP_CHECK(is_floating(x.dtype()) && x.dim() >= events, "[", name,
                 "] expected floating parameters with at least ", events, " dims, got ", x.dtype(), " ", x.shape(),
                 "; convert or reshape them");
  return Shape(x.shape().begin(), x.shape().end() - events);
}

/// p clamped so far from 0 and 1 that log p and log(1 - p) are finite. Clamped values get no gradient.
Variable inner_probability(const Variable& p) {
  const double eps = epsilon(wide(p).dtype());
  return clamp(wide(p), eps, 1 - eps);
}

Tensor is_integral(const Tensor& x) { return logical_and(not_negative(x), eq(floor(x), x)); }

/// Error unless x, called `what`, is floating and has classes.
void check_classes(const char* what, const Variable& x) {
  LOCKSTEP_CHECK(is_floating(x.dtype()) && x.dim() >= 1 && x.size(-1) >= 1, "[Categorical] expected floating ", what,
                 " (..., classes), got ", x.dtype(), " ", x.shape(), "; convert or reshape them");
}

}  // namespace

// --- with a location and a scale, and Uniform ---

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
  check_values(name(), "low < high, that is high - low > 0", (high - low).tensor(), lt(low, high));
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

// --- over positive numbers, and Beta ---

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
  return clamp(sigmoid(one - zero), least_of(dtype), 1 - epsilon(dtype) / 2).to(dtype);  // the largest number below 1
}

// --- over vectors ---

Dirichlet::Dirichlet(const Variable& c)
    : Distribution("Dirichlet", leading("Dirichlet", c, 1), {c.dim() > 0 ? c.size(-1) : 0}), concentration(c) {
  check_values(name(), "concentration > 0", c.tensor(), positive(c.tensor()));
}
Variable Dirichlet::log_prob(const Variable& value) const {
  const Variable x = checked(value, concentration, "in [0, 1] that sum to 1", [](const Tensor& v) {
    const Tensor off = abs(sum(v, {-1}, true) - 1.0);
    return logical_and(not_negative(v), lt(off, constant(1e-6, v)));
  });
  return sum(x_log_y(concentration - 1.0, x), {-1}) + lgamma(sum(concentration, {-1})) -
         sum(lgamma(concentration), {-1});
}
Variable Dirichlet::entropy() const {
  const Variable total = sum(concentration, {-1});
  const double n = double(concentration.size(-1));
  return sum(lgamma(concentration), {-1}) - lgamma(total) - (n - total) * digamma(total) -
         sum((concentration - 1.0) * digamma(concentration), {-1});
}
Variable Dirichlet::mean() const { return concentration / sum(concentration, {-1}, true); }
Variable Dirichlet::variance() const {
  const Variable total = sum(concentration, {-1}, true);
  return concentration * (total - concentration) / (square(total) * (total + 1.0));
}
Variable Dirichlet::draw(const Shape& shape) const {
  const Variable x = softmax(log_gamma_variates(concentration.expand(shape)), -1);
  return x.to(concentration.dtype());
}

MultivariateNormal::MultivariateNormal(const Variable& mean, const Variable& tril)
    : Distribution("MultivariateNormal") {
  const Shape a = leading(name(), mean, 1), b = leading(name(), tril, 2);
  const int64_t n = mean.size(-1);
  LOCKSTEP_CHECK(tril.size(-1) == n && tril.size(-2) == n && tril.dtype() == mean.dtype(), "[", name(),
                 "] expected loc (..., n) and scale_tril (..., n, n) of one dtype, got ", mean.dtype(), " ",
                 mean.shape(), " and ", tril.dtype(), " ", tril.shape(), "; convert or reshape one of them");
  batch_ = broadcast_shapes(name(), a, b), event_ = Shape{n};
  loc = mean.expand(joined(batch_, event_));
  scale_tril = tril.expand(joined(batch_, {n, n}));
  const Tensor& l = scale_tril.tensor();
  const Variable diagonal(l.diagonal(0, -2, -1));
  check_values(name(), "scale_tril with a diagonal > 0", diagonal.tensor(), positive(diagonal.tensor()));
  check_values(name(), "a lower scale_tril", scale_tril.tensor(), eq(lockstep::tril(l), l));
}
Variable MultivariateNormal::half_log_determinant() const { return sum(log(scale_tril.diagonal(0, -2, -1)), {-1}); }
Variable MultivariateNormal::log_prob(const Variable& value) const {
  const Variable x = checked(value, loc, "without NaN", is_finite);
  const Variable white = linalg::solve_triangular(scale_tril, (x - loc).unsqueeze(-1), false).squeeze(-1);
  const double n = double(loc.size(-1));
  return sum(square(white), {-1}) * -0.5 - half_log_determinant() - 0.5 * n * std::log(2 * std::numbers::pi);
}
Variable MultivariateNormal::entropy() const {
  return half_log_determinant() + 0.5 * double(loc.size(-1)) * (1 + std::log(2 * std::numbers::pi));
}
Variable MultivariateNormal::variance() const { return sum(square(scale_tril), {-1}); }
Variable MultivariateNormal::covariance() const { return matmul(scale_tril, scale_tril.transpose(-2, -1)); }
Variable MultivariateNormal::draw(const Shape& shape) const {
  const Variable mean = wide(loc), noise(randn(shape, options_of(mean)).unsqueeze(-1));
  return (mean + matmul(wide(scale_tril), noise).squeeze(-1)).to(loc.dtype());
}

// --- over integers ---

Bernoulli::Bernoulli(const Parameter& probability) : Bernoulli() {
  take({{probability, probs, "probs in [0, 1]", in_unit}});
  wide_probs = wide(probs);
  const Variable p = inner_probability(probs);
  logits = (log(p) - log1p(neg(p))).to(probs.dtype());
}
Bernoulli Bernoulli::from_logits(const Parameter& logits) {
  Bernoulli made;
  made.take({{logits, made.logits, "logits without NaN", is_finite}});
  made.wide_probs = sigmoid(wide(made.logits));
  made.probs = made.wide_probs.to(made.logits.dtype());
  return made;
}
Variable Bernoulli::log_prob(const Variable& value) const {
  const Variable x = checked(value, probs, "in [0, 1]", in_unit);
  const Shape shape = broadcast_shapes(name(), x.shape(), logits.shape());
  return neg(bce_with_logits(logits.expand(shape), x.expand(shape), {}, {}, Reduction::none));
}
Variable Bernoulli::entropy() const { return bce_with_logits(logits, probs, {}, {}, Reduction::none); }
Variable Bernoulli::draw(const Shape& shape) const {
  return lt(rand(shape, options_of(wide_probs)), wide_probs.tensor()).to(probs.dtype());
}

Categorical::Categorical(const Variable& p, const Variable& l, DType dtype)
    : Distribution("Categorical", without_last(p.shape())),
      probs(p.to(dtype)),
      logits(l.to(dtype)),
      wide_probs(p),
      wide_logits(l) {}
Categorical::Categorical(const Variable& weights) : Distribution("Categorical") {
  check_classes("probs", weights);
  check_values(name(), "probs >= 0", weights.tensor(), not_negative(weights.tensor()));
  const Variable total = sum(wide(weights), {-1}, true);
  check_values(name(), "probs that are not all 0: a sum > 0", total.tensor(), positive(total.tensor()));
  const Variable p = wide(weights) / total;
  *this = Categorical(p, log(inner_probability(p)), weights.dtype());
}
Categorical Categorical::from_logits(const Variable& logits) {
  check_classes("logits", logits);
  check_values("Categorical", "logits without NaN", logits.tensor(), is_finite(logits.tensor()));
  const Variable l = log_softmax(wide(logits), -1);
  return {exp(l), l, logits.dtype()};
}
Variable Categorical::log_prob(const Variable& value) const {
  const double classes = double(probs.size(-1));
  const Variable x = checked(value, wide_probs, "that are classes",
                             [&](const Tensor& v) { return logical_and(is_integral(v), lt(v, constant(classes, v))); });
  const Shape shape = broadcast_shapes(name(), x.shape(), batch_shape());
  const Tensor index = value.tensor().to(i64).expand(shape).unsqueeze(-1);
  return gather(logits.expand(joined(shape, {probs.size(-1)})), -1, index).squeeze(-1);
}
Variable Categorical::entropy() const {
  const Tensor impossible = eq(wide_logits.tensor(), full({}, -INFINITY, options_of(wide_logits)));
  return neg(sum(wide_probs * masked_fill(wide_logits, impossible, 0), {-1})).to(probs.dtype());
}
Variable Categorical::draw(const Shape& shape) const {
  // The first class whose cumulative probability exceeds a uniform number in [0, total). Rounding never makes that
  // number reach the total, and a class of probability 0 adds nothing.
  const Tensor cumulated = cumsum(wide_probs.tensor(), -1), entire = cumulated.narrow(-1, probs.size(-1) - 1, 1);
  const Tensor u = mul(rand(shape, options_of(wide_probs)).unsqueeze(-1), entire);
  return sum(le(cumulated, u).to(i64), {-1});
}

Poisson::Poisson(const Parameter& events) : Distribution("Poisson") {
  take({{events, rate, "rate >= 0", not_negative}});
}
Variable Poisson::log_prob(const Variable& value) const {
  const Variable x = checked(value, rate, "that are whole numbers >= 0", is_integral);
  return x_log_y(x, rate) - rate - lgamma(x + 1.0);
}
Variable Poisson::draw(const Shape& shape) const { return poisson(wide(rate).tensor().expand(shape)).to(rate.dtype()); }

}  // namespace lockstep::distributions
