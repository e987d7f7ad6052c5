// Losses for regression, for probabilities, for signs, for classes and for distances. See losses.h.
#include "extensions/layers/losses.h"

#include <cmath>
#include <numbers>

#include "autograd/autocast.h"
#include "autograd/loss_common.h"
#include "autograd/recorded.h"
#include "extensions/operations/operations.h"

namespace lockstep {
namespace {

/// Error unless all parts are floating and have the first part's shape and dtype. Under Autocast dtypes may differ.
void check_alike(const char* op, std::initializer_list<std::pair<const char*, const Variable&>> parts) {
  const auto& [name, first] = *parts.begin();
  for (const auto& [other, x] : parts) {
    LOCKSTEP_CHECK(x.shape() == first.shape(), "[", op, "] expected ", name, " and ", other, " of one shape, got ",
                   first.shape(), " and ", x.shape(), "; reshape one of them");
    LOCKSTEP_CHECK(is_floating(x.dtype()), "[", op, "] expected floating ", other, ", got ", x.dtype(),
                   "; convert with .to(dtype)");
    LOCKSTEP_CHECK(x.dtype() == first.dtype() || Autocast::enabled(), "[", op, "] expected ", name, " and ", other,
                   " of one dtype, got ", first.dtype(), " and ", x.dtype(), "; convert with .to(dtype)");
  }
}

/// Error unless margin is finite and in [low, high].
void check_margin(const char* op, double margin, double low, double high) {
  LOCKSTEP_CHECK(margin >= low && margin <= high && std::isfinite(margin), "[", op, "] expected a finite margin in [",
                 low, ", ", high, "], got ", margin);
}

/// Error unless `weight` is undefined or broadcasts to `shape`.
void check_broadcasts(const char* op, const Tensor& weight, const Shape& shape) {
  LOCKSTEP_CHECK(!weight.defined() || broadcast_shapes(op, weight.shape(), shape) == shape, "[", op,
                 "] expected a weight that broadcasts to ", shape, ", got ", weight.shape(), "; reshape the weight");
}

/// True where low <= x <= high.
Tensor within(const Tensor& x, double low, double high) {
  return logical_and(ge(x, constant(low, x)), le(x, constant(high, x)));
}

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

/// Checks that target is i64 of shape `shape`, in [lowest, C). Returns x, which is (N, C) or (C), as (N, C).
Variable class_rows(const char* op, const Variable& x, const Tensor& target, const Shape& shape, int64_t lowest) {
  const int64_t classes = x.size(-1);
  LOCKSTEP_CHECK(target.dtype() == i64 && target.shape() == shape, "[", op, "] expected a target of i64 ", shape,
                 " for x ", x.shape(), ", got ", target.dtype(), " ", target.shape(), "; convert or reshape it");
  check_values(op, str("targets in [", lowest, ", ", classes, ")").c_str(), target,
               within(target, double(lowest), double(classes - 1)));
  return x.dim() == 1 ? x.unsqueeze(0) : x;
}

void check_class_rows(const char* op, const Variable& x) {
  LOCKSTEP_CHECK((x.dim() == 1 || x.dim() == 2) && x.size(-1) > 0 && is_floating(x.dtype()), "[", op,
                 "] expected floating x (N, C) or (C) with at least one class, got ", x.dtype(), " ", x.shape());
}

Variable hinge(const Variable& positive, Variable negative, const Variable& swapped, double margin) {
  if (swapped.defined()) negative = minimum(negative, swapped);
  return relu(add_scalar(sub(positive, negative), margin));
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

// --- classification ---

Variable multi_margin_loss(const Variable& input, const Tensor& target, const MultiMarginOptions& options,
                           Reduction reduction) {
  const char* const op = "multi_margin_loss";
  check_class_rows(op, input);
  check_margin(op, options.margin, -INFINITY, INFINITY);
  LOCKSTEP_CHECK(options.p == 1 || options.p == 2, "[", op, "] expected p of 1 or 2, got ", options.p);
  const Shape shape = without_last(input.shape());
  const Wide wide(input);
  const Variable x = class_rows(op, wide(input), target, shape, 0);
  const int64_t classes = x.size(1);
  LOCKSTEP_CHECK(!options.weight.defined() || options.weight.shape() == Shape{classes}, "[", op,
                 "] expected a weight of shape ", Shape{classes}, ", one for each class, got ", options.weight.shape());
  const Tensor own = target.reshape({x.size(0), 1});
  Variable over = relu(sub(x, gather(x, 1, own)) + options.margin);
  if (options.p == 2) over = square(over);
  const Tensor is_own = eq(own, arange(classes, {i64, own.device()}).unsqueeze(0));
  Variable losses = sum(masked_fill(over, is_own, 0), {1}) / classes;
  if (options.weight.defined())
    losses = mul(losses, index_select(options.weight.to(x.dtype()), 0, own.reshape({x.size(0)})));
  return finish(wide, losses.reshape(shape), reduction);
}

Variable multilabel_margin_loss(const Variable& input, const Tensor& target, Reduction reduction) {
  const char* const op = "multilabel_margin_loss";
  check_class_rows(op, input);
  const Wide wide(input);
  const Variable x = class_rows(op, wide(input), target, input.shape(), -1);
  const int64_t rows = x.size(0), classes = x.size(1);
  // A row of `list` holds target classes, ended by the first -1. counts[row][i] is true if entry i is a target class,
  // own[row][c] is true if class c is in the list.
  const Tensor list = target.reshape({rows, classes}), zero = constant(0, list);
  const Tensor counts = eq(cumsum(lt(list, zero).to(i64), 1), zero), none = logical_not(counts);
  const Tensor places = masked_fill(list, none, 0);
  const Tensor own = gt(scatter_add(zeros_like(list), 1, places, counts.to(i64)), zero);
  const Variable over = relu(sub(x.unsqueeze(1), gather(x, 1, places).unsqueeze(2)) + 1);
  const Variable losses = sum(masked_fill(over, logical_or(none.unsqueeze(2), own.unsqueeze(1)), 0), {1, 2});
  return finish(wide, (losses / classes).reshape(without_last(input.shape())), reduction);
}

Variable multilabel_soft_margin_loss(const Variable& input, const Variable& aim, const Tensor& weight,
                                     Reduction reduction) {
  const char* const op = "multilabel_soft_margin_loss";
  check_alike(op, {{"x", input}, {"target", aim}});
  check_broadcasts(op, weight, input.shape());
  LOCKSTEP_CHECK(input.dim() >= 1, "[", op, "] expected x (..., C), got a scalar; unsqueeze(0) adds a dim");
  const Wide wide(input);
  return finish(wide, mean(bce_with_logits(wide(input), wide(aim), weight, {}, Reduction::none), {-1}), reduction);
}

// --- distances ---

Variable pairwise_distance(const Variable& x, const Variable& y, double p, double eps, bool keepdim) {
  const char* const op = "pairwise_distance";
  check_alike(op, {{"x", x}, {"y", y}});
  LOCKSTEP_CHECK(x.dim() >= 1, "[", op, "] expected x (..., D), got a scalar; unsqueeze(0) adds a dim");
  LOCKSTEP_CHECK(p > 0, "[", op, "] expected p > 0, got ", p);
  const Wide wide(x);
  const Variable d = add_scalar(sub(wide(x), wide(y)), eps);
  if (p == 2) return wide.round(norm(d, {-1}, keepdim));
  if (p == 1) return wide.round(sum(abs(d), {-1}, keepdim));
  if (std::isinf(p)) return wide.round(amax(abs(d), {-1}, keepdim));
  return wide.round(power(sum(power(abs(d), p), {-1}, keepdim), 1 / p));
}

Variable triplet_margin_loss(const Variable& anchor, const Variable& positive, const Variable& negative,
                             const TripletOptions& options, Reduction reduction) {
  const char* const op = "triplet_margin_loss";
  check_alike(op, {{"anchor", anchor}, {"positive", positive}, {"negative", negative}});
  LOCKSTEP_CHECK(options.margin > 0, "[", op, "] expected a margin > 0, got ", options.margin);
  const Wide wide(anchor);
  const Variable a = wide(anchor), b = wide(positive), c = wide(negative);
  const auto distance = [&](const Variable& x, const Variable& y) {
    return pairwise_distance(x, y, options.p, options.eps);
  };
  const Variable swapped = options.swap ? distance(b, c) : Variable();
  return finish(wide, hinge(distance(a, b), distance(a, c), swapped, options.margin), reduction);
}

Variable triplet_margin_with_distance_loss(const Variable& anchor, const Variable& positive, const Variable& negative,
                                           const TripletDistanceOptions& options, Reduction reduction) {
  const char* const op = "triplet_margin_with_distance_loss";
  check_alike(op, {{"anchor", anchor}, {"positive", positive}, {"negative", negative}});
  LOCKSTEP_CHECK(options.margin > 0, "[", op, "] expected a margin > 0, got ", options.margin);
  if (!options.distance)
    return triplet_margin_loss(anchor, positive, negative, {.margin = options.margin, .swap = options.swap}, reduction);
  const Variable near = options.distance(anchor, positive), far = options.distance(anchor, negative);
  const Variable swapped = options.swap ? options.distance(positive, negative) : Variable();
  for (const Variable* d : {&far, &swapped})
    LOCKSTEP_CHECK(!d->defined() || d->shape() == near.shape(), "[", op,
                   "] expected options.distance to return one shape for all pairs, got ", near.shape(), " and ",
                   d->shape());
  const Wide wide(near);
  return finish(wide, hinge(wide(near), wide(far), swapped.defined() ? wide(swapped) : swapped, options.margin),
                reduction);
}

}  // namespace lockstep
