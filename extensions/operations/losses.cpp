// Losses composed of differentiable operations. All compute in f32 when operands have 16 bits.
#include "extensions/operations/losses.h"

#include "autograd/autocast.h"
#include "autograd/loss_common.h"

namespace lockstep {

Variable nll_loss(const Variable& log_probabilities, const Tensor& target, const CrossEntropyOptions& options) {
  const Wide wide(log_probabilities);
  const Variable input = wide(log_probabilities);
  check_class_options("nll_loss", input, options);
  check_class_indices("nll_loss", input, target);
  LOCKSTEP_CHECK(options.label_smoothing == 0, "[nll_loss] expected no label_smoothing; cross_entropy takes it");
  const Variable x = class_rows(input);
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

Variable l1_loss(const Variable& x, const Variable& target, Reduction reduction) {
  check_one_shape("l1_loss", x, target);
  const Wide wide(x);
  return finish(wide, abs(sub(wide(x), wide(target))), reduction);
}

Variable smooth_l1_loss(const Variable& x, const Variable& target, double beta, Reduction reduction) {
  LOCKSTEP_CHECK(beta >= 0, "[smooth_l1_loss] expected beta >= 0, got ", beta);
  check_one_shape("smooth_l1_loss", x, target);
  if (beta == 0) return l1_loss(x, target, reduction);
  const Wide wide(x);
  const Variable d = abs(sub(wide(x), wide(target)));
  const Tensor near = lt(d.tensor(), constant(beta, d.tensor()));
  return finish(wide, where(near, mul_scalar(mul(d, div_scalar(d, beta)), 0.5), add_scalar(d, -0.5 * beta)), reduction);
}

Variable huber_loss(const Variable& x, const Variable& target, double delta, Reduction reduction) {
  LOCKSTEP_CHECK(delta > 0, "[huber_loss] expected delta > 0, got ", delta);
  check_one_shape("huber_loss", x, target);
  const Wide wide(x);
  const Variable d = abs(sub(wide(x), wide(target)));
  const Tensor near = le(d.tensor(), constant(delta, d.tensor()));
  return finish(wide, where(near, mul_scalar(square(d), 0.5), mul_scalar(add_scalar(d, -0.5 * delta), delta)),
                reduction);
}

Variable bce_with_logits(const Variable& input, const Variable& aim, const Tensor& weight, const Tensor& pos_weight,
                         Reduction reduction) {
  check_one_shape("bce_with_logits", input, aim);
  const Wide wide(input);
  const Variable x = wide(input), target = wide(aim);
  for (const Tensor* tensor : {&weight, &pos_weight}) {
    LOCKSTEP_CHECK(!tensor->defined() || broadcast_shapes("bce_with_logits", tensor->shape(), x.shape()) == x.shape(),
                   "[bce_with_logits] expected weights that broadcast to ", x.shape(), ", got ", tensor->shape(),
                   "; reshape them");
  }
  // With target t, pos_weight p and sigmoid s, the loss is -t p log s(x) - (1 - t) log s(-x).
  // Because log s(-x) = log s(x) - x, the loss equals (1 - t) x - (1 + (p - 1) t) log s(x).
  const Variable log_s = log_sigmoid(x);
  const Variable plain = mul(rsub_scalar(target, 1), x);
  Variable losses = pos_weight.defined()
                        ? sub(plain, mul(add_scalar(mul(target, add_scalar(pos_weight.to(x.dtype()), -1)), 1), log_s))
                        : sub(plain, log_s);
  if (weight.defined()) losses = mul(losses, weight.to(x.dtype()));
  return finish(wide, losses, reduction);
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
