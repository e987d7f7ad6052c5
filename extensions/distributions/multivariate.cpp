// Dirichlet and MultivariateNormal. See distributions.h.
#include "extensions/distributions/distributions.h"

#include <cmath>
#include <numbers>

#include "autograd/loss_common.h"
#include "extensions/linear_algebra/linear_algebra.h"

namespace lockstep::distributions {
namespace {

Shape leading(const char* name, const Variable& x, int events) {
  LOCKSTEP_CHECK(is_floating(x.dtype()) && x.dim() >= events, "[", name,
                 "] expected floating parameters with at least ", events, " dims, got ", x.dtype(), " ", x.shape(),
                 "; convert or reshape them");
  return Shape(x.shape().begin(), x.shape().end() - events);
}

}  // namespace

Dirichlet::Dirichlet(const Variable& c)
    : Distribution("Dirichlet", leading("Dirichlet", c, 1), {c.dim() > 0 ? c.size(-1) : 0}), concentration(c) {
  check_parameter(name(), "concentration > 0", c, positive(c.tensor()));
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
  check_parameter(name(), "scale_tril with a diagonal > 0", diagonal, positive(diagonal.tensor()));
  check_parameter(name(), "a lower scale_tril", scale_tril, eq(lockstep::tril(l), l));
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

}  // namespace lockstep::distributions
