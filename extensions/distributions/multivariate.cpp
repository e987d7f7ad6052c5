// Dirichlet and MultivariateNormal. See multivariate.h.
#include "extensions/distributions/multivariate.h"

#include <cmath>
#include <numbers>

#include "extensions/linear_algebra/linear_algebra.h"

namespace lockstep::distributions {
namespace {

Shape leading(const char* name, const Variable& x, int events) {
  LOCKSTEP_CHECK(is_floating(x.dtype()) && x.dim() >= events, "[", name,
                 "] expected floating parameters with at least ", events, " dims, got ", x.dtype(), " ", x.shape(),
                 "; convert or reshape them");
  return Shape(x.shape().begin(), x.shape().end() - events);
}

Shape joined(const Shape& batch, std::initializer_list<int64_t> event) {
  Shape shape = batch;
  for (const int64_t size : event) shape.push_back(size);
  return shape;
}

/// The batch shape of loc (..., n) and tril (..., n, n): the broadcast of their leading dims. Error if they do not fit.
Shape batch_of_both(const Variable& loc, const Variable& tril) {
  const char* const name = "MultivariateNormal";
  const Shape a = leading(name, loc, 1), b = leading(name, tril, 2);
  const int64_t n = loc.size(-1);
  LOCKSTEP_CHECK(tril.size(-1) == n && tril.size(-2) == n && tril.dtype() == loc.dtype(), "[", name,
                 "] expected loc (..., n) and scale_tril (..., n, n) of one dtype, got ", loc.dtype(), " ", loc.shape(),
                 " and ", tril.dtype(), " ", tril.shape(), "; convert or reshape one of them");
  return broadcast_shapes(name, a, b);
}

}  // namespace

Dirichlet::Dirichlet(const Variable& c)
    : Distribution(leading("Dirichlet", c, 1), {c.dim() > 0 ? c.size(-1) : 0}), concentration(c) {
  check_parameter(name(), "concentration > 0", c, above(c.tensor(), 0));
}
Variable Dirichlet::log_prob(const Variable& value) const {
  const Variable x = checked(value, concentration, "in [0, 1] that sum to 1", [](const Tensor& v) {
    const Tensor off = abs(sum(v, {-1}, true) - 1.0);
    return logical_and(at_least(v, 0), lt(off, full({}, 1e-6, {v.dtype(), v.device()})));
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
    : Distribution(batch_of_both(mean, tril), {mean.size(-1)}) {
  const int64_t n = mean.size(-1);
  loc = mean.expand(joined(batch_shape(), {n}));
  scale_tril = tril.expand(joined(batch_shape(), {n, n}));
  const Tensor& l = scale_tril.tensor();
  const Variable diagonal(l.diagonal(0, -2, -1));
  check_parameter(name(), "scale_tril with a diagonal > 0", diagonal, above(diagonal.tensor(), 0));
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
