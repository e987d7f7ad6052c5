// Bernoulli, Categorical and Poisson. See discrete.h.
#include "extensions/distributions/discrete.h"

#include <cmath>

#include "extensions/distributions/samplers.h"
#include "extensions/operations/operations.h"

namespace lockstep::distributions {
namespace {

/// p clamped so far from 0 and 1 that log p and log(1 - p) are finite. Clamped values get no gradient.
Variable inner_probability(const Variable& p) {
  const double eps = p.dtype() == f64 ? 0x1p-52 : 0x1p-23;
  return clamp(wide(p), eps, 1 - eps);
}

Tensor is_integral(const Tensor& x) { return logical_and(at_least(x, 0), eq(floor(x), x)); }
Tensor is_probability(const Tensor& p) {
  return logical_and(at_least(p, 0), le(p, full({}, 1, {p.dtype(), p.device()})));
}

}  // namespace

Bernoulli::Bernoulli(const Parameter& probability) : Bernoulli(broadcast("Bernoulli", {probability})[0], Variable()) {
  check_parameter(name(), "probs in [0, 1]", probs, is_probability(probs.tensor()));
  const Variable p = inner_probability(probs);
  logits = (log(p) - log1p(neg(p))).to(probs.dtype());
}
Bernoulli Bernoulli::from_logits(const Parameter& logits) {
  const Variable l = broadcast("Bernoulli", {logits})[0];
  check_parameter("Bernoulli", "logits without NaN", l, is_finite(l.tensor()));
  Bernoulli made(sigmoid(wide(l)), l);
  made.probs = made.wide_probs_.to(l.dtype());
  return made;
}
Variable Bernoulli::log_prob(const Variable& value) const {
  const Variable x = checked(value, probs, "in [0, 1]", is_probability);
  const Shape shape = broadcast_shapes(name(), x.shape(), logits.shape());
  return neg(bce_with_logits(logits.expand(shape), x.expand(shape), {}, {}, Reduction::none));
}
Variable Bernoulli::entropy() const { return bce_with_logits(logits, probs, {}, {}, Reduction::none); }
Variable Bernoulli::draw(const Shape& shape) const {
  return lt(rand(shape, options_of(wide_probs_)), wide_probs_.tensor()).to(probs.dtype());
}

Categorical::Categorical(const Variable& p, const Variable& l, DType dtype)
    : Distribution(Shape(p.shape().begin(), p.shape().end() - 1), {}),
      probs(p.to(dtype)),
      logits(l.to(dtype)),
      wide_probs(p),
      wide_logits(l) {}
Categorical::Categorical(const Variable& p, DType dtype) : Categorical(p, log(inner_probability(p)), dtype) {}
Categorical::Categorical(const Variable& weights)
    : Categorical(
          [&] {
            LOCKSTEP_CHECK(is_floating(weights.dtype()) && weights.dim() >= 1 && weights.size(-1) >= 1,
                           "[Categorical] expected floating probs (..., classes), got ", weights.dtype(), " ",
                           weights.shape(), "; convert or reshape them");
            check_parameter("Categorical", "probs >= 0", weights, at_least(weights.tensor(), 0));
            const Variable total = sum(wide(weights), {-1}, true);
            check_parameter("Categorical", "probs that are not all 0: a sum > 0", total, above(total.tensor(), 0));
            return wide(weights) / total;
          }(),
          weights.dtype()) {}
Categorical Categorical::from_logits(const Variable& logits) {
  LOCKSTEP_CHECK(is_floating(logits.dtype()) && logits.dim() >= 1 && logits.size(-1) >= 1,
                 "[Categorical] expected floating logits (..., classes), got ", logits.dtype(), " ", logits.shape(),
                 "; convert or reshape them");
  check_parameter("Categorical", "logits without NaN", logits, is_finite(logits.tensor()));
  const Variable l = log_softmax(wide(logits), -1);
  return {exp(l), l, logits.dtype()};
}
Variable Categorical::log_prob(const Variable& value) const {
  const double classes = double(probs.size(-1));
  const Variable x = checked(value, wide_probs, "that are classes", [&](const Tensor& v) {
    return logical_and(is_integral(v), lt(v, full({}, classes, {v.dtype(), v.device()})));
  });
  const Shape shape = broadcast_shapes(name(), x.shape(), batch_shape());
  Shape with_classes = shape;
  with_classes.push_back(probs.size(-1));
  const Tensor index = value.tensor().to(i64).expand(shape).unsqueeze(-1);
  return gather(logits.expand(with_classes), -1, index).squeeze(-1);
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

Poisson::Poisson(const Parameter& events) : Poisson(broadcast("Poisson", {events})) {}
Poisson::Poisson(const std::vector<Variable>& p) : Distribution(p[0].shape(), {}), rate(p[0]) {
  check_parameter(name(), "rate >= 0", rate, at_least(rate.tensor(), 0));
}
Variable Poisson::log_prob(const Variable& value) const {
  const Variable x = checked(value, rate, "that are whole numbers >= 0", is_integral);
  return x_log_y(x, rate) - rate - lgamma(x + 1.0);
}
Variable Poisson::draw(const Shape& shape) const { return poisson(wide(rate).tensor().expand(shape)).to(rate.dtype()); }

}  // namespace lockstep::distributions
