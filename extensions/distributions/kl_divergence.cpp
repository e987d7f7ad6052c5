// Kullback-Leibler divergences: one formula per pair of distributions. See distributions.h.
#include <cmath>
#include <numbers>

#include "extensions/distributions/distributions.h"
#include "extensions/linear_algebra/linear_algebra.h"

namespace lockstep::distributions {
namespace {

Tensor are(const Variable& x, double value) { return eq(x.tensor(), full({}, value, options_of(x))); }

/// Returns y, with `x` where the mask is true. y and the mask are broadcast.
Variable put(const Variable& y, const Tensor& mask, double x) {
  const Shape shape = broadcast_shapes("kl_divergence", y.shape(), mask.shape());
  return masked_fill(y.expand(shape), mask.expand(shape), x);
}

Variable divergence(const Normal& p, const Normal& q) {
  const Variable ratio = square(p.scale / q.scale);
  return (ratio + square((p.loc - q.loc) / q.scale) - 1.0 - log(ratio)) * 0.5;
}
Variable divergence(const LogNormal& p, const LogNormal& q) { return divergence(p.base, q.base); }
Variable divergence(const Laplace& p, const Laplace& q) {
  const Variable ratio = p.scale / q.scale, off = abs(p.loc - q.loc);
  return off / q.scale - log(ratio) + ratio * exp(neg(off / p.scale)) - 1.0;
}
Variable divergence(const Uniform& p, const Uniform& q) {
  const Tensor outside = logical_or(gt(q.low, p.low), lt(q.high, p.high));
  return put(log((q.high - q.low) / (p.high - p.low)), outside, INFINITY);
}
Variable divergence(const Uniform& p, const Normal& q) {
  const Variable width = p.high - p.low, square_scale = square(q.scale), off = (p.high + p.low - q.loc * 2.0) * 0.5;
  return log(q.scale * std::sqrt(2 * std::numbers::pi) / width) +
         (square(width) * (1. / 12) + square(off)) / square_scale * 0.5;
}
Variable divergence(const Laplace& p, const Normal& q) {
  const Variable square_scale = square(q.scale), ratio = square(p.scale) / square_scale;
  return ratio - log(ratio * 2.0) * 0.5 + square(p.loc - q.loc) / square_scale * 0.5 +
         (0.5 * std::log(std::numbers::pi) - 1);
}

Variable divergence(const Bernoulli& p, const Bernoulli& q) {
  const auto part = [&](const Variable& chance, const Variable& other, const Variable& from, const Variable& to) {
    const Variable terms = put(chance * (softplus(from) - softplus(to)), are(other, 0), INFINITY);
    return put(terms, are(chance, 0), 0);
  };
  return part(p.probs, q.probs, neg(q.logits), neg(p.logits)) + part(1.0 - p.probs, 1.0 - q.probs, q.logits, p.logits);
}
Variable divergence(const Categorical& p, const Categorical& q) {
  LOCKSTEP_CHECK(p.probs.size(-1) == q.probs.size(-1),
                 "[kl_divergence] expected the same number of classes in both, got ", p.probs.size(-1), " and ",
                 q.probs.size(-1), "; compare distributions over the same classes");
  const Variable& own = p.wide_probs;
  const Variable terms = put(own * (p.wide_logits - q.wide_logits), are(q.wide_probs, 0), INFINITY);
  return sum(put(terms, are(own, 0), 0), {-1}).to(p.probs.dtype());
}
Variable divergence(const Poisson& p, const Poisson& q) { return x_log_y(p.rate, p.rate / q.rate) - (p.rate - q.rate); }

Variable gamma_divergence(const Variable& a, const Variable& rate, const Variable& other_a,
                          const Variable& other_rate) {
  return other_a * log(rate / other_rate) + lgamma(other_a) - lgamma(a) + (a - other_a) * digamma(a) +
         (other_rate - rate) * (a / rate);
}
Variable one_like(const Variable& x) { return ones_like(x.tensor()); }
Variable divergence(const Gamma& p, const Gamma& q) {
  return gamma_divergence(p.concentration, p.rate, q.concentration, q.rate);
}
Variable divergence(const Exponential& p, const Exponential& q) {
  const Variable ratio = q.rate / p.rate;
  return ratio - 1.0 - log(ratio);
}
Variable divergence(const Exponential& p, const Gamma& q) {
  return gamma_divergence(one_like(p.rate), p.rate, q.concentration, q.rate);
}
Variable divergence(const Gamma& p, const Exponential& q) {
  return gamma_divergence(p.concentration, p.rate, one_like(q.rate), q.rate);
}
Variable divergence(const Beta& p, const Beta& q) {
  const Variable &a = p.concentration1, &b = p.concentration0, &c = q.concentration1, &d = q.concentration0;
  const Variable both = a + b;
  return lgamma(c) + lgamma(d) + lgamma(both) - lgamma(c + d) - lgamma(a) - lgamma(b) + (a - c) * digamma(a) +
         (b - d) * digamma(b) + (c + d - both) * digamma(both);
}
Variable divergence(const Dirichlet& p, const Dirichlet& q) {
  const Variable &a = p.concentration, &b = q.concentration;
  const Variable total = sum(a, {-1});
  return lgamma(total) - lgamma(sum(b, {-1})) + sum(lgamma(b), {-1}) - sum(lgamma(a), {-1}) +
         sum((a - b) * (digamma(a) - digamma(total).unsqueeze(-1)), {-1});
}
Variable divergence(const MultivariateNormal& p, const MultivariateNormal& q) {
  LOCKSTEP_CHECK(p.event_shape() == q.event_shape(), "[kl_divergence] expected vectors of one size, got ",
                 p.event_shape(), " and ", q.event_shape(), "; compare distributions of one size");
  const Variable turned = linalg::solve_triangular(q.scale_tril, p.scale_tril, false);
  const Variable off = linalg::solve_triangular(q.scale_tril, (q.loc - p.loc).unsqueeze(-1), false);
  const double n = double(p.loc.size(-1));
  return q.half_log_determinant() - p.half_log_determinant() +
         (sum(square(turned), {-2, -1}) + sum(square(off), {-2, -1}) - n) * 0.5;
}

/// If p is a P and q is a Q, stores their divergence in `out` and returns true.
template <class P, class Q> bool found(const Distribution& p, const Distribution& q, Variable& out) {
  const P* const a = dynamic_cast<const P*>(&p);
  const Q* const b = dynamic_cast<const Q*>(&q);
  if (a && b) out = divergence(*a, *b);
  return a && b;
}
template <class... Kinds> bool found_same(const Distribution& p, const Distribution& q, Variable& out) {
  return (found<Kinds, Kinds>(p, q, out) || ...);
}

}  // namespace

Variable kl_divergence(const Distribution& p, const Distribution& q) {
  Variable out;
  if (found_same<Normal, LogNormal, Laplace, Uniform, Bernoulli, Categorical, Poisson, Gamma, Exponential, Beta,
                 Dirichlet, MultivariateNormal>(p, q, out) ||
      found<Exponential, Gamma>(p, q, out) || found<Gamma, Exponential>(p, q, out) ||
      found<Uniform, Normal>(p, q, out) || found<Laplace, Normal>(p, q, out))
    return out;
  fail(str("[kl_divergence] has no formula for ", p.name(), " and ", q.name(),
           "; estimate it: mean of p.log_prob(x) - q.log_prob(x) over x = p.", p.has_rsample() ? "r" : "",
           "sample(...)"));
}

}  // namespace lockstep::distributions
