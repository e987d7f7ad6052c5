// Losses for regression, for probabilities, and for targets of 1 and -1. See losses.h.
#include "extensions/layers/losses.h"

#include <cmath>
#include <numbers>

#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "extensions/layers/loss_checks.h"

namespace lockstep {
namespace {

/// Checks that targets are 1 or -1, and returns them in x's dtype.
Tensor signs(const char* op, const Tensor& target, const Shape& shape, const Variable& x) {
  LOCKSTEP_CHECK(target.shape() == shape, "[", op, "] expected a target of shape ", shape, " for x ", x.shape(),
                 ", got ", target.shape(), "; reshape the target");
  const Tensor sign = target.to(x.dtype());
  check_values(op, "targets of 1 and -1", sign, eq(abs(sign), constant(1, sign)));
  return sign;
}

/// Logarithm of a probability, at least -100.
Variable clipped_log(const Variable& p) { return clamp(log(p), -100, INFINITY); }

/// The derivative of bce_loss with respect to the target: log(1 - p) - log(p). For a first derivative, returns the
/// tensor that forward kept. For a second derivative, computes it again from p.
const Tensor& slope_of_target(const Tensor& kept, const Tensor&) { return kept; }
Variable slope_of_target(const Tensor&, const Variable& p) {
  return sub(clipped_log(rsub_scalar(p, 1)), clipped_log(p));
}

}  // namespace

Variable bce_loss(const Variable& input, const Variable& aim, const Tensor& weight, Reduction reduction) {
  const char* const op = "bce_loss";
  check_alike(op, {{"x", input}, {"target", aim}});
  check_broadcasts(op, weight, input.shape());
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  check_values(op, "x in [0, 1]", x.tensor(), within(x.tensor(), 0, 1));
  check_values(op, "targets in [0, 1]", target.tensor(), within(target.tensor(), 0, 1));
  const Tensor log_x = clamp(log(x.tensor()), -100, INFINITY), log_rest = clamp(log1p(neg(x.tensor())), -100, INFINITY);
  const Tensor towards_target = sub(log_rest, log_x);
  Variable losses = sub(mul(target.tensor(), towards_target), log_rest);
  if (needs_grad({&x, &target}))
    losses =
        record(op, {&x, &target}, losses.tensor(), [x = Saved(x), target = Saved(target), towards_target](auto& b) {
          const auto& p = b.input(0, x);
          const auto slope = clamp(mul(p, rsub_scalar(p, 1)), 1e-12, INFINITY);
          if (b.needs(1)) b.give(1, mul(b.grad(), slope_of_target(towards_target, p)));
          if (b.needs(0)) b.give(0, mul(b.grad(), div(sub(p, b.input(1, target)), slope)));
        });
  if (weight.defined()) losses = mul(losses, weight.to(x.dtype()));
  return finish(wide, losses, reduction);
}

Variable poisson_nll_loss(const Variable& input, const Variable& aim, const PoissonNllOptions& options,
                          Reduction reduction) {
  check_alike("poisson_nll_loss", {{"x", input}, {"target", aim}});
  LOCKSTEP_CHECK(options.eps >= 0, "[poisson_nll_loss] expected eps >= 0, got ", options.eps);
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  Variable losses =
      options.log_input ? sub(exp(x), mul(target, x)) : sub(x, mul(target, log(add_scalar(x, options.eps))));
  if (options.full) {
    const Tensor few = le(target.tensor(), constant(1, target.tensor()));
    const Variable many = masked_fill(target, few, 1);
    const Variable stirling = add(sub(mul(many, log(many)), many), log(many * (2 * std::numbers::pi)) * 0.5);
    losses = add(losses, masked_fill(stirling, few, 0));
  }
  return finish(wide, losses, reduction);
}

Variable gaussian_nll_loss(const Variable& input, const Variable& aim, const Variable& variance,
                           const GaussianNllOptions& options, Reduction reduction) {
  const char* const op = "gaussian_nll_loss";
  check_alike(op, {{"x", input}, {"target", aim}});
  LOCKSTEP_CHECK(options.eps > 0, "[", op, "] expected eps > 0, got ", options.eps);
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  const Shape& shape = x.shape();
  Variable v = wide(variance);
  if (v.dim() + 1 == x.dim() && v.shape() == without_last(shape)) v = v.unsqueeze(-1);
  int ones = 0, others = v.dim() == x.dim() ? 0 : 1;
  for (int d = 0; others == 0 && d < x.dim(); ++d)
    if (v.shape()[d] != shape[d]) v.shape()[d] == 1 ? ++ones : ++others;
  LOCKSTEP_CHECK(ones + 2 * others <= 1, "[", op, "] expected a variance of x's shape ", shape,
                 ", or without its last dim, or of size 1 in one dim, got ", variance.shape(), "; reshape it");
  LOCKSTEP_CHECK(v.dtype() == x.dtype(), "[", op, "] expected x and variance of one dtype, got ", input.dtype(),
                 " and ", variance.dtype(), "; convert with .to(dtype)");
  check_values(op, "variances >= 0", v.tensor(), ge(v.tensor(), constant(0, v.tensor())));
  const Tensor low = lt(v.tensor(), constant(options.eps, v.tensor()));
  v = where(low, add_scalar(sub(v, v.detach()), options.eps), v);
  Variable losses = add(log(v), div(square(sub(x, target)), v)) * 0.5;
  if (options.full) losses = losses + 0.5 * std::log(2 * std::numbers::pi);
  return finish(wide, losses, reduction);
}

Variable sigmoid_focal_loss(const Variable& input, const Variable& aim, const FocalOptions& options,
                            Reduction reduction) {
  check_alike("sigmoid_focal_loss", {{"x", input}, {"target", aim}});
  LOCKSTEP_CHECK(options.gamma >= 0, "[sigmoid_focal_loss] expected gamma >= 0, got ", options.gamma);
  LOCKSTEP_CHECK(options.alpha <= 1, "[sigmoid_focal_loss] expected alpha in [0, 1], or below 0 for none, got ",
                 options.alpha);
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  Variable losses = bce_with_logits(x, target, {}, {}, Reduction::none);
  if (options.gamma > 0) {  // 1 - p of the target; sigmoid(-x) avoids the cancellation
    const Variable wrong = add(mul(sigmoid(x), rsub_scalar(target, 1)), mul(sigmoid(neg(x)), target));
    losses = mul(losses, power(wrong, options.gamma));
  }
  if (options.alpha >= 0) losses = mul(losses, target * (2 * options.alpha - 1) + (1 - options.alpha));
  return finish(wide, losses, reduction);
}

Variable soft_margin_loss(const Variable& input, const Tensor& target, Reduction reduction) {
  check_alike("soft_margin_loss", {{"x", input}});
  const Wide wide(input);
  const Variable x = wide(input);
  return finish(wide, neg(log_sigmoid(mul(x, signs("soft_margin_loss", target, x.shape(), x)))), reduction);
}

Variable hinge_embedding_loss(const Variable& input, const Tensor& target, double margin, Reduction reduction) {
  const char* const op = "hinge_embedding_loss";
  check_alike(op, {{"x", input}});
  check_margin(op, margin, -INFINITY, INFINITY);
  const Wide wide(input);
  const Variable x = wide(input);
  const Tensor sign = signs(op, target, x.shape(), x);
  return finish(wide, where(gt(sign, constant(0, sign)), x, relu(rsub_scalar(x, margin))), reduction);
}

Variable margin_ranking_loss(const Variable& a, const Variable& b, const Tensor& target, double margin,
                             Reduction reduction) {
  const char* const op = "margin_ranking_loss";
  check_alike(op, {{"a", a}, {"b", b}});
  check_margin(op, margin, -INFINITY, INFINITY);
  const Wide wide(a);
  const Variable difference = sub(wide(a), wide(b));
  return finish(wide, relu(rsub_scalar(mul(difference, signs(op, target, a.shape(), difference)), margin)), reduction);
}

Variable cosine_embedding_loss(const Variable& first, const Variable& second, const Tensor& target, double margin,
                               Reduction reduction) {
  const char* const op = "cosine_embedding_loss";
  check_alike(op, {{"a", first}, {"b", second}});
  check_margin(op, margin, -1, 1);
  LOCKSTEP_CHECK(first.dim() == 1 || first.dim() == 2, "[", op, "] expected a and b (N, D) or (D), got ", first.shape(),
                 "; reshape them");
  const Wide wide(first);
  const Variable a = wide(first), b = wide(second);
  const Tensor sign = signs(op, target, without_last(a.shape()), a);
  const auto length = [](const Variable& x) { return sqrt(sum(square(x), {-1}) + 1e-12); };
  const Variable cosine = div(sum(mul(a, b), {-1}), mul(length(a), length(b)));
  const Tensor same = gt(sign, constant(0, sign));
  return finish(wide, where(same, rsub_scalar(cosine, 1), relu(add_scalar(cosine, -margin))), reduction);
}

}  // namespace lockstep
