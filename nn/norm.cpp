// Normalisation layers. See norm.h.
#include "nn/norm.h"

#include <algorithm>

namespace lockstep::nn {

LayerNorm::LayerNorm(const Options& o) : shape(o.shape), eps(o.eps) {
  LOCKSTEP_CHECK(shape.rank() > 0,
                 "[LayerNorm] expected a shape of at least one dim, got none; set it to the sizes of the last dims");
  if (!o.affine) return;
  weight = parameter(shape, 1);
  if (o.bias) bias = parameter(shape, 0);
}

RMSNorm::RMSNorm(const Options& o) : eps(o.eps), weight(parameter({o.size}, 1)) {}

Norm::Norm(const Options& options) : o(options), weight(parameter({o.size}, 1)) {
  if (o.kind == layer && o.bias) bias = parameter({o.size}, 0);
}

SumAndNorm Norm::of_sum(const Variable& residual, const Variable& x, Dropout& dropout) {
  if (has_hooks() || dropout.has_hooks()) {
    const Variable sum = dropout.apply_and_add(residual, x);
    return {sum, (*this)(sum)};
  }
  return add_norm(residual, x, {o.size}, weight, bias, {.centered = o.kind == layer, .eps = o.eps, .p = dropout.p},
                  dropout.is_training(), dropout.part);
}

Variable BatchNorm::forward(const Variable& x) {
  LOCKSTEP_CHECK(std::count(allowed_ranks.begin(), allowed_ranks.end(), x.dim()) && x.size(1) == o.channels, "[",
                 kind(), "] expected ", allowed_ranks, "-dimensional input with ", o.channels,
                 " channels in dim 1, got ", x.shape(), "; reshape the input, or change channels");
  const bool from_batch = is_training() || !o.track;
  double momentum = o.momentum.value_or(0);
  if (is_training() && o.track) {
    add_scalar_(num_batches_tracked, 1);
    if (!o.momentum) momentum = 1 / num_batches_tracked.item();
  }
  const bool updates_running = is_training() && o.track;
  if (is_training() && across_ranks) return across_ranks(x, weight, bias, running_mean, running_var, momentum, o.eps);
  return batch_norm(x, weight, bias, updates_running || !from_batch ? running_mean : Tensor(),
                    updates_running || !from_batch ? running_var : Tensor(), from_batch, momentum, o.eps);
}

}  // namespace lockstep::nn
