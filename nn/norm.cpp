#include "nn/norm.h"

#include <algorithm>

#include "nn/init.h"

namespace lockstep::nn {

LayerNorm::LayerNorm(const Options& o) : shape(o.shape), eps(o.eps) {
  LOCKSTEP_CHECK(shape.rank() > 0, "[LayerNorm] expected a shape of at least one dim");
  if (!o.affine) return;
  weight = parameter(shape, 1);
  if (o.bias) bias = parameter(shape, 0);
}

RMSNorm::RMSNorm(const Options& o) : eps(o.eps), weight(parameter({o.size}, 1)) {}

Norm::Norm(const Options& options) : o(options), weight(parameter({o.size}, 1)) {
  if (o.kind == layer && o.bias) bias = parameter({o.size}, 0);
}

GroupNorm::GroupNorm(const Options& o) : groups(o.groups), channels(o.channels), eps(o.eps) {
  LOCKSTEP_CHECK(groups > 0 && channels % groups == 0, "[GroupNorm] expected groups to divide ", channels,
                 " channels, got ", groups);
  if (!o.affine) return;
  weight = parameter({channels}, 1);
  bias = parameter({channels}, 0);
}

BatchNorm::BatchNorm(const Options& options) : o(options) {
  LOCKSTEP_CHECK(o.channels > 0, "[BatchNorm] expected channels > 0, got ", o.channels);
  if (o.affine) {
    weight = parameter({o.channels}, 1);
    bias = parameter({o.channels}, 0);
  }
  if (!o.track) return;
  running_mean = zeros({o.channels});
  running_var = ones({o.channels});
  num_batches_tracked = zeros({}, {.dtype = i64});
}

Variable BatchNorm::forward(const Variable& x) {
  LOCKSTEP_CHECK(std::count(allowed_ranks.begin(), allowed_ranks.end(), x.dim()) && x.size(1) == o.channels, "[",
                 kind(), "] expected ", allowed_ranks, "-dimensional input with ", o.channels,
                 " channels in dim 1, got ", x.shape());
  const bool from_batch = is_training() || !o.track;
  double momentum = o.momentum.value_or(0);
  if (is_training() && o.track) {
    add_scalar_(num_batches_tracked, 1);
    if (!o.momentum) momentum = 1 / num_batches_tracked.item();
  }
  const bool move = is_training() && o.track;
  if (is_training() && over_batch) return over_batch(x, weight, bias, running_mean, running_var, momentum, o.eps);
  return batch_norm(x, weight, bias, move || !from_batch ? running_mean : Tensor(),
                    move || !from_batch ? running_var : Tensor(), from_batch, momentum, o.eps);
}

void update_bn(Module& model, const std::function<void()>& pass) {
  std::vector<std::pair<Module*, bool>> modes;
  std::vector<std::pair<BatchNorm*, std::optional<double>>> momenta;
  const auto restore = [&] {
    for (const auto& [module, training] : modes) module->train(training);  // those below follow
    for (const auto& [norm, momentum] : momenta) norm->o.momentum = momentum;
  };
  for (const auto& [name, module] : model.named_modules()) {
    modes.emplace_back(module, module->is_training());
    auto* norm = dynamic_cast<BatchNorm*>(module);
    if (!norm || !norm->o.track) continue;
    momenta.emplace_back(norm, norm->o.momentum);
    norm->o.momentum.reset();
    norm->running_mean.zero_();
    norm->running_var.fill_(1);
    norm->num_batches_tracked.zero_();
  }
  if (momenta.empty()) return;
  model.train();
  try {
    const NoGrad no_grad;
    pass();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

}  // namespace lockstep::nn
