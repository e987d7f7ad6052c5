// Losses with a margin, for class scores and for distances between samples. See losses.h.
#include <cmath>

#include "extensions/layers/loss_checks.h"
#include "extensions/layers/losses.h"
#include "extensions/operations/operations.h"

namespace lockstep {
namespace {

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
