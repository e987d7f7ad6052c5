// Cross entropy and mean squared error. Cross entropy with probabilities is composed of differentiable operations; the
// others have their own derivatives. All compute in f32 when operands have 16 bits.
#include <cstdio>

#include "autograd/autocast.h"
#include "autograd/loss_common.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "tensor/padded.h"

namespace lockstep {

Tensor divisor_of(const Tensor& index, const Tensor& weight, const CrossEntropyArgs& args, const Tensor& out) {
  if (index.device().is_cpu()) return constant(cross_entropy_weight_sum(index, weight, args), out);
  const Tensor ignored = eq(index, full({}, args.ignore_index, {i64, index.device()}));
  if (!weight.defined()) return rsub_scalar(sum(ignored.to(i64)), index.numel()).to(out.dtype());
  const Tensor weights = index_select(weight.to(f64), 0, masked_fill(index, ignored, 0));
  return sum(masked_fill(weights, ignored, 0)).to(out.dtype());
}

Shape without_classes(const Shape& shape) {
  Shape rest = shape;
  rest.erase(shape.rank() == 1 ? 0 : 1);
  return rest;
}

Variable class_rows(const Variable& x) {
  if (x.dim() == 1) return x.unsqueeze(0);
  if (x.dim() == 2) return x;
  Dims order{0};
  for (int d = 2; d < x.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return x.permute(order).reshape({numel_of(without_classes(x.shape())), x.size(1)});
}

void check_class_options(const char* op, const Variable& x, const CrossEntropyOptions& options) {
  LOCKSTEP_CHECK(x.dim() >= 1 && is_floating(x.dtype()), "[", op, "] expected floating logits (N, C, ...) or (C), got ",
                 x.dtype(), " ", x.shape(), "; convert or reshape them");
  const int64_t classes = x.size(x.dim() == 1 ? 0 : 1);
  LOCKSTEP_CHECK(!options.weight.defined() || options.weight.shape() == Shape{classes}, "[", op,
                 "] expected a weight of shape ", Shape{classes}, ", one for each class, got ", options.weight.shape());
  LOCKSTEP_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, "[", op,
                 "] expected label_smoothing in [0, 1], got ", options.label_smoothing);
}

void check_class_indices(const char* op, const Variable& x, const Tensor& target) {
  const Shape rest = without_classes(x.shape());
  LOCKSTEP_CHECK(target.dtype() == i64, "[", op, "] expected class indices of dtype i64 or probabilities, got ",
                 target.dtype(), "; convert them with .to(i64)");
  LOCKSTEP_CHECK(target.shape() == rest, "[", op, "] expected class indices of shape ", rest, " for logits ", x.shape(),
                 ", got ", target.shape(), "; reshape the indices");
}

namespace {

/// Cross entropy of each row, composed of other operations.
Variable composed_rows(const Variable& rows, const Tensor& index, const Tensor& weight, const CrossEntropyArgs& args) {
  const Tensor ignored = eq(index, full({}, args.ignore_index, {i64, index.device()}));
  const Tensor safe = masked_fill(index, ignored, 0);
  const double classes = double(rows.size(1));
  Variable log_p = log_softmax(rows, 1);
  if (weight.defined()) log_p = mul(log_p, weight);
  Variable losses = mul_scalar(gather(log_p, 1, safe.unsqueeze(1)).squeeze(1), args.label_smoothing - 1);
  if (args.label_smoothing > 0) losses = sub(losses, mul_scalar(sum(log_p, {1}), args.label_smoothing / classes));
  return masked_fill(losses, ignored, 0);
}

struct CrossEntropyBackward {
  Saved logits, index, weight;
  Tensor lse, divisor;
  CrossEntropyArgs args;
  bool none;  // no reduction
  int64_t count;
  static constexpr const char* name = "cross_entropy";

  void operator()(Backward& back) {
    Tensor grad = back.grad();
    if (divisor.defined()) grad = div(grad, divisor.to(grad.dtype()));
    grad = none ? grad.reshape({count}) : grad.expand({count});
    // The logits are often the largest tensor of a model: their gradient overwrites them when nobody else holds them.
    const Tensor x = back.retains() ? logits.get(name) : logits.take(name);
    const bool in_place = !back.retains() && x.is_exclusive() && has_full_rows(x);
    back.give(0, cross_entropy_rows_grad(grad, x, lse, index.get(name), weight.get(name), args, in_place));
  }
  void operator()(RecordedBackward& back) const {
    const Shape shape = back.grad().shape();
    back.through({&logits}, [&](const std::vector<Variable>& inputs) {
      const Variable losses = composed_rows(inputs[0], index.get(name), weight.get(name), args);
      if (none) return losses.reshape(shape);
      return divisor.defined() ? div(sum(losses), divisor.to(losses.dtype())) : sum(losses);
    });
  }
};

Variable cross_entropy_indices(const Variable& logits, const Tensor& target, const CrossEntropyOptions& options) {
  const Variable rows = class_rows(logits);
  const int64_t count = rows.size(0);
  const Tensor index = target.reshape({count});
  const Tensor weight =
      options.weight.defined() && Autocast::enabled() ? options.weight.to(rows.dtype()) : options.weight;
  const CrossEntropyArgs args{options.ignore_index, options.label_smoothing};
  CrossEntropyRows result = cross_entropy_rows(rows.tensor(), index, weight, args);
  const bool none = options.reduction == Reduction::none;
  Tensor out = none ? result.loss.view(without_classes(logits.shape())) : sum(result.loss), divisor;
  if (options.reduction == Reduction::mean) {
    divisor = divisor_of(index, weight, args, out);
    out = div(out, divisor);
  }
  if (!needs_grad({&rows})) return out;
  return record("cross_entropy", {&rows}, std::move(out),
                CrossEntropyBackward{rows, index, weight, std::move(result.lse), divisor, args, none, count});
}

Variable cross_entropy_probabilities(const Variable& logits, const Variable& target,
                                     const CrossEntropyOptions& options) {
  const Wide wide(logits);
  const Variable x = class_rows(wide(logits));
  const int64_t classes = x.size(1);
  if (classes == 1) {
    static const bool warned =
        (std::fputs("[cross_entropy] warning: the loss of 1 class is 0; give 2 or more\n", stderr), true);
    (void)warned;
  }
  Variable probabilities = class_rows(wide(target));
  const double smoothing = options.label_smoothing;
  if (smoothing > 0) probabilities = add_scalar(mul_scalar(probabilities, 1 - smoothing), smoothing / double(classes));
  if (options.weight.defined()) probabilities = mul(probabilities, options.weight.to(x.dtype()));
  const Variable losses = rsub_scalar(sum(mul(log_softmax(x, 1), probabilities), {1}), 0);  // 0 - x: a zero loss is +0
  return finish(wide, losses.reshape(without_classes(logits.shape())), options.reduction);
}

}  // namespace

Variable cross_entropy(const Variable& logits, const Variable& target, const CrossEntropyOptions& options) {
  check_class_options("cross_entropy", logits, options);
  if (!is_floating(target.dtype())) {
    check_class_indices("cross_entropy", logits, target.tensor());
    return cross_entropy_indices(logits, target.tensor(), options);
  }
  LOCKSTEP_CHECK(target.shape() == logits.shape(), "[cross_entropy] expected probabilities of the logits' shape ",
                 logits.shape(), " (or i64 class indices of shape ", without_classes(logits.shape()), "), got ",
                 target.dtype(), " ", target.shape(), "; convert or reshape the target");
  return cross_entropy_probabilities(logits, target, options);
}

namespace {
struct MseBackward {
  Tensor difference;
  double count;

  void operator()(Backward& back) {
    const Tensor scale = mul_scalar(back.grad(), 2 / count);
    const Tensor grad = back.retains() ? mul(difference, scale) : mul_(difference, scale);
    difference = back.retains() ? difference : Tensor();
    if (back.needs(1)) back.give(1, neg(grad));
    if (back.needs(0)) back.give(0, grad);
  }
  void operator()(RecordedBackward& back) const {
    // The gradient depends only on x - target, so only this is saved. Use it in place of x, and 0 in place of target.
    const Variable scale = mul_scalar(back.grad(), 2 / count), from = back.input(0, difference);
    const Variable grad = mul(sub(from, back.input(1, zeros_like(difference))), scale);
    back.give(1, neg(grad));
    back.give(0, grad);
  }
};
}  // namespace

Variable mse_loss(const Variable& input, const Variable& aim, Reduction reduction) {
  check_one_shape("mse_loss", input, aim);
  if (const auto dtype = Autocast::common({&input, &aim})) return mse_loss(input.to(*dtype), aim.to(*dtype), reduction);
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  if (reduction == Reduction::none) return wide.round(square(sub(x, target)));
  Tensor difference = sub(x.tensor(), target.tensor());
  const double count = reduction == Reduction::mean ? double(x.numel()) : 1;
  Tensor out = sum_squares(difference);
  if (reduction == Reduction::mean) out = div(out, constant(count, out));
  if (!needs_grad({&x, &target})) return wide.round(out);
  return wide.round(record("mse_loss", {&x, &target}, std::move(out), MseBackward{std::move(difference), count}));
}

}  // namespace lockstep
