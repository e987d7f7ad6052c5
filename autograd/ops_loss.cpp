// Losses. Cross entropy with class indices and mean squared error have their own derivatives; the others are composed
// of differentiable operations. All compute in f32 when operands have 16 bits.
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

namespace {

Variable reduced(const Variable& losses, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::mean ? mean(losses) : sum(losses);
}

void check_one_shape(const char* op, const Variable& x, const Variable& target) {
  LOCKSTEP_CHECK(x.shape() == target.shape(), "[", op, "] expected x and target of one shape, got ", x.shape(), " and ",
                 target.shape(), "; reshape one of them");
  LOCKSTEP_CHECK(is_floating(x.dtype()) && is_floating(target.dtype()), "[", op,
                 "] expected floating x and target, got ", x.dtype(), " and ", target.dtype(), "; use .to(f32)");
  LOCKSTEP_CHECK(x.dtype() == target.dtype() || Autocast::enabled(), "[", op,
                 "] expected x and target of one dtype, got ", x.dtype(), " and ", target.dtype(),
                 "; convert with .to(dtype)");
}

/// The shape without the dim of the classes: dim 1, or dim 0 if there is only one dim.
Shape without_classes(const Shape& shape) {
  Shape rest = shape;
  rest.erase(shape.rank() == 1 ? 0 : 1);
  return rest;
}

/// Moves the classes last and joins all other dims: (rows, C).
Variable as_rows(const Variable& x) {
  if (x.dim() == 1) return x.unsqueeze(0);
  if (x.dim() == 2) return x;
  Dims order{0};
  for (int d = 2; d < x.dim(); ++d) order.push_back(d);
  order.push_back(1);
  return x.permute(order).reshape({numel_of(without_classes(x.shape())), x.size(1)});
}

void check_options(const char* op, const Variable& x, const CrossEntropyOptions& options) {
  LOCKSTEP_CHECK(x.dim() >= 1 && is_floating(x.dtype()), "[", op, "] expected floating logits (N, C, ...) or (C), got ",
                 x.dtype(), " ", x.shape(), "; convert or reshape them");
  const int64_t classes = x.size(x.dim() == 1 ? 0 : 1);
  LOCKSTEP_CHECK(!options.weight.defined() || options.weight.shape() == Shape{classes}, "[", op,
                 "] expected a weight of shape ", Shape{classes}, ", one for each class, got ", options.weight.shape());
  LOCKSTEP_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, "[", op,
                 "] expected label_smoothing in [0, 1], got ", options.label_smoothing);
}

void check_targets(const char* op, const Variable& x, const Tensor& target) {
  const Shape rest = without_classes(x.shape());
  LOCKSTEP_CHECK(target.dtype() == i64, "[", op, "] expected class indices of dtype i64 or probabilities, got ",
                 target.dtype(), "; convert them with .to(i64)");
  LOCKSTEP_CHECK(target.shape() == rest, "[", op, "] expected class indices of shape ", rest, " for logits ", x.shape(),
                 ", got ", target.shape(), "; reshape the indices");
}

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
  const Variable rows = as_rows(logits);
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
  const Variable x = as_rows(wide(logits));
  const int64_t classes = x.size(1);
  if (classes == 1) {
    static const bool warned =
        (std::fputs("[cross_entropy] warning: cross_entropy over 1 class is constant 0\n", stderr), true);
    (void)warned;
  }
  Variable probabilities = as_rows(wide(target));
  const double smoothing = options.label_smoothing;
  if (smoothing > 0) probabilities = add_scalar(mul_scalar(probabilities, 1 - smoothing), smoothing / double(classes));
  if (options.weight.defined()) probabilities = mul(probabilities, options.weight.to(x.dtype()));
  const Variable losses = rsub_scalar(sum(mul(log_softmax(x, 1), probabilities), {1}), 0);  // 0 - x: a zero loss is +0
  return wide.round(reduced(losses.reshape(without_classes(logits.shape())), options.reduction));
}

}  // namespace

Variable cross_entropy(const Variable& logits, const Variable& target, const CrossEntropyOptions& options) {
  check_options("cross_entropy", logits, options);
  if (!is_floating(target.dtype())) {
    check_targets("cross_entropy", logits, target.tensor());
    return cross_entropy_indices(logits, target.tensor(), options);
  }
  LOCKSTEP_CHECK(target.shape() == logits.shape(), "[cross_entropy] expected probabilities of the logits' shape ",
                 logits.shape(), " (or i64 class indices of shape ", without_classes(logits.shape()), "), got ",
                 target.dtype(), " ", target.shape(), "; convert or reshape the target");
  return cross_entropy_probabilities(logits, target, options);
}

Variable nll_loss(const Variable& log_probabilities, const Tensor& target, const CrossEntropyOptions& options) {
  const Wide wide(log_probabilities);
  const Variable input = wide(log_probabilities);
  check_options("nll_loss", input, options);
  check_targets("nll_loss", input, target);
  LOCKSTEP_CHECK(options.label_smoothing == 0, "[nll_loss] expected no label_smoothing, got ", options.label_smoothing);
  const Variable x = as_rows(input);
  const Tensor index = target.reshape({x.size(0)});
  const Tensor ignored = eq(index, full({}, options.ignore_index, {i64, index.device()}));
  const Tensor safe = masked_fill(index, ignored, 0);
  if (index.device().is_cpu()) {
    int64_t row = 0;
    for (int64_t t : safe.to_vector<int64_t>()) {
      LOCKSTEP_CHECK(t >= 0 && t < x.size(1), "[nll_loss] expected targets in [0, ", x.size(1), "), got ", t,
                     " in row ", row, "; correct the targets");
      ++row;
    }
  }
  Tensor weights = options.weight.defined() ? index_select(options.weight.to(x.dtype()), 0, safe)
                                            : ones({x.size(0)}, {x.dtype(), x.device()});
  weights = masked_fill(weights, ignored, 0);
  const Variable picked = gather(x, 1, safe.unsqueeze(1)).squeeze(1);
  // An ignored row contributes 0, even when its log-probability is -inf.
  const Variable losses = neg(mul(masked_fill(picked, ignored, 0), weights));
  if (options.reduction == Reduction::none) return wide.round(losses.reshape(without_classes(input.shape())));
  const Variable total = sum(losses);
  return wide.round(options.reduction == Reduction::sum ? total : div(total, sum(weights)));
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
    // The gradient depends only on x - target, so only this difference is saved. Use it in place of x, and 0 in place
    // of target.
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

Variable l1_loss(const Variable& x, const Variable& target, Reduction reduction) {
  check_one_shape("l1_loss", x, target);
  const Wide wide(x);
  return wide.round(reduced(abs(sub(wide(x), wide(target))), reduction));
}

Variable smooth_l1_loss(const Variable& x, const Variable& target, double beta, Reduction reduction) {
  LOCKSTEP_CHECK(beta >= 0, "[smooth_l1_loss] expected beta >= 0, got ", beta);
  check_one_shape("smooth_l1_loss", x, target);
  if (beta == 0) return l1_loss(x, target, reduction);
  const Wide wide(x);
  const Variable d = abs(sub(wide(x), wide(target)));
  const Tensor near = lt(d.tensor(), constant(beta, d.tensor()));
  return wide.round(
      reduced(where(near, mul_scalar(mul(d, div_scalar(d, beta)), 0.5), add_scalar(d, -0.5 * beta)), reduction));
}

Variable huber_loss(const Variable& x, const Variable& target, double delta, Reduction reduction) {
  LOCKSTEP_CHECK(delta > 0, "[huber_loss] expected delta > 0, got ", delta);
  check_one_shape("huber_loss", x, target);
  const Wide wide(x);
  const Variable d = abs(sub(wide(x), wide(target)));
  const Tensor near = le(d.tensor(), constant(delta, d.tensor()));
  return wide.round(
      reduced(where(near, mul_scalar(square(d), 0.5), mul_scalar(add_scalar(d, -0.5 * delta), delta)), reduction));
}

Variable bce_with_logits(const Variable& input, const Variable& aim, const Tensor& weight, const Tensor& pos_weight,
                         Reduction reduction) {
  check_one_shape("bce_with_logits", input, aim);
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  for (const Tensor* tensor : {&weight, &pos_weight}) {
    LOCKSTEP_CHECK(!tensor->defined() || broadcast_shapes("bce_with_logits", tensor->shape(), x.shape()) == x.shape(),
                   "[bce_with_logits] expected weights that broadcast to ", x.shape(), ", got ", tensor->shape());
  }
  // With target t, pos_weight p and sigmoid s, the loss is -t p log s(x) - (1 - t) log s(-x).
  // Because log s(-x) = log s(x) - x, the loss equals (1 - t) x - (1 + (p - 1) t) log s(x).
  const Variable log_s = log_sigmoid(x);
  const Variable plain = mul(rsub_scalar(target, 1), x);
  Variable losses = pos_weight.defined()
                        ? sub(plain, mul(add_scalar(mul(target, add_scalar(pos_weight.to(x.dtype()), -1)), 1), log_s))
                        : sub(plain, log_s);
  if (weight.defined()) losses = mul(losses, weight.to(x.dtype()));
  return wide.round(reduced(losses, reduction));
}

Variable kl_div(const Variable& input, const Variable& aim, KlReduction reduction, bool log_target) {
  check_one_shape("kl_div", input, aim);
  LOCKSTEP_CHECK(reduction != KlReduction::batchmean || input.dim() >= 1,
                 "[kl_div] expected at least 1 dim for batchmean, got a scalar; unsqueeze(0) adds a batch");
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  Variable losses;
  if (log_target) {
    losses = mul(exp(target), sub(target, x));
  } else {
    const Tensor empty_class = eq(target.tensor(), constant(0, target.tensor()));  // 0 log 0 = 0
    losses = sub(mul(target, log(masked_fill(target, empty_class, 1))), mul(target, x));
  }
  switch (reduction) {
    case KlReduction::none: return wide.round(losses);
    case KlReduction::sum: return wide.round(sum(losses));
    case KlReduction::batchmean: return wide.round(div_scalar(sum(losses), x.size(0)));
    default: return wide.round(mean(losses));
  }
}

}  // namespace lockstep
