// Bernoulli, Categorical and Poisson. See distributions.h.
#include "extensions/distributions/distributions.h"

#include <cmath>

#include "autograd/loss_common.h"
#include "extensions/distributions/samplers.h"
#include "extensions/operations/operations.h"

namespace lockstep::distributions {
namespace {

/// p clamped so far from 0 and 1 that log p and log(1 - p) are finite. Clamped values get no gradient.
Variable inner_probability(const Variable& p) {
  const double eps = p.dtype() == f64 ? 0x1p-52 : 0x1p-23;
  return clamp(wide(p), eps, 1 - eps);
}

Tensor is_integral(const Tensor& x) { return logical_and(not_negative(x), eq(floor(x), x)); }

/// Error unless x, called `what`, is floating and has classes.
void check_classes(const char* what, const Variable& x) {
  LOCKSTEP_CHECK(is_floating(x.dtype()) && x.dim() >= 1 && x.size(-1) >= 1, "[Categorical] expected floating ", what,
                 " (..., classes), got ", x.dtype(), " ", x.shape(), "; convert or reshape them");
}

}  // namespace

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
  check_parameter(name(), "probs >= 0", weights, not_negative(weights.tensor()));
  const Variable total = sum(wide(weights), {-1}, true);
  check_parameter(name(), "probs that are not all 0: a sum > 0", total, positive(total.tensor()));
  const Variable p = wide(weights) / total;
  *this = Categorical(p, log(inner_probability(p)), weights.dtype());
}
Categorical Categorical::from_logits(const Variable& logits) {
  check_classes("logits", logits);
  check_parameter("Categorical", "logits without NaN", logits, is_finite(logits.tensor()));
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
