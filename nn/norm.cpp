// Normalisation layers and update_bn(). See norm.h.
#include "nn/norm.h"

#include <algorithm>

#include "autograd/stand_in.h"
#include "nn/init.h"

namespace lockstep::nn {

namespace {

Tensor unit(const Tensor& x, double eps) {
  const Tensor length = norm(x);
  return x / (length + relu(eps - length));
}

/// The weight as a matrix (size of `dim`, product of the other sizes).
template <class T> T as_matrix(const T& weight, int dim) {
  return weight.transpose(0, dim).reshape({weight.size(dim), weight.numel() / weight.size(dim)});
}

/// Power iteration: moves u and v towards the singular vectors of m's largest singular value.
void power_steps(const Tensor& m, const Tensor& u, const Tensor& v, int64_t steps, double eps) {
  for (; steps > 0; --steps) {
    u.copy_(unit(matmul(m, v.to(m.dtype())), eps));
    v.copy_(unit(matmul(m.t(), u.to(m.dtype())), eps));
  }
}

/// Checks that a layer's weight has at least 2 dims; returns `dim` as a number >= 0.
int check_weight(const char* layer, const Variable& weight, int64_t dim) {
  LOCKSTEP_CHECK(weight.defined() && weight.dim() >= 2 && weight.numel() > 0, "[", layer,
                 "] expected a layer with a weight of at least 2 dims, got ",
                 weight.defined() ? str(weight.shape()) : "none", "; give a layer such as Linear or Conv2d");
  return normalize_dim(layer, dim, weight.dim());
}

/// The values of a weight. If it was built empty (nn/init.h) and has no values yet, the values that it will start with.
Tensor values_of(const Variable& weight) { return is_built_empty(weight) ? start_of(weight) : weight.tensor(); }

}  // namespace

LayerNorm::LayerNorm(const Options& o) : shape(o.shape), eps(o.eps) {
  LOCKSTEP_CHECK(shape.rank() > 0,
                 "[LayerNorm] expected a shape of at least one dim: the sizes of the trailing dims to normalise over");
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

GroupNorm::GroupNorm(const Options& o) : groups(o.groups), channels(o.channels), eps(o.eps) {
  LOCKSTEP_CHECK(groups > 0 && channels % groups == 0, "[GroupNorm] expected groups to divide ", channels,
                 " channels, got ", groups);
  if (!o.affine) return;
  weight = parameter({channels}, 1);
  bias = parameter({channels}, 0);
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

Variable InstanceNorm::forward(const Variable& x) {
  const bool batch = x.dim() == rank;
  LOCKSTEP_CHECK((batch || x.dim() == rank - 1) && x.size(batch) == o.channels, "[", kind(), "] expected ", rank,
                 "-dimensional input with ", o.channels, " channels in dim 1, or the same without a batch, got ",
                 x.shape(), "; reshape the input, or change channels");
  const Variable samples = batch ? x : x.unsqueeze(0);
  const auto without_batch = [&](const Variable& y) { return batch ? y : y.squeeze(0); };
  if (o.track && !is_training())
    return without_batch(batch_norm(samples, weight, bias, running_mean, running_var, false, 0, o.eps));
  Dims dims;
  int64_t values = 1;
  for (int d = 2; d < rank; ++d) dims.push_back(d), values *= samples.size(d);
  LOCKSTEP_CHECK(values > 1, "[", kind(), "] expected more than 1 value per channel to normalise over, got ", x.shape(),
                 "; give larger spatial sizes");
  if (o.track) {
    const Tensor wide = x.dtype() == f64 ? samples.tensor() : samples.tensor().to(f32);
    const auto blend_into = [&](const Tensor& running, const Tensor& now) {
      running.copy_(lerp(running.to(now.dtype()), mean(now, {0}), o.momentum));
    };
    blend_into(running_mean, mean(wide, dims));
    blend_into(running_var, var(wide, dims));
  }
  return without_batch(group_norm(samples, o.channels, weight, bias, o.eps));
}

LocalResponseNorm::LocalResponseNorm(const Options& options) : o(options) {
  LOCKSTEP_CHECK(o.size > 0, "[LocalResponseNorm] expected size > 0, got ", o.size);
}
Variable LocalResponseNorm::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() >= 3, "[LocalResponseNorm] expected input (N, C, ...) of at least 3 dims, got ", x.shape());
  if (x.numel() == 0) return x;
  const Variable squares = square(x).reshape({x.size(0), 1, x.size(1), x.numel() / (x.size(0) * x.size(1))});
  const Variable means =
      avg_pool2d(pad(squares, {0, 0, o.size / 2, (o.size - 1) / 2}), {.kernel = {o.size, 1}, .stride = {1, 1}});
  return x / pow_scalar(means.reshape(x.shape()) * o.alpha + o.k, o.beta);
}

WeightNorm::WeightNorm(Variable weight, const Options& o) : v(std::move(weight)) {
  const int dim = check_weight("WeightNorm", v, o.dim);
  Shape shape;
  for (int d = 0; o.dim != -1 && d < v.dim(); ++d) {
    shape.push_back(d == dim ? v.size(d) : 1);
    if (d != dim) over.push_back(d);
  }
  g = parameter(shape);
  const Variable first(v.tensor());  // keeps the tensor when v is replaced
  // g starts as the norms of v. v may have been built empty: then g is filled after it.
  start_with(g, str("lengths of another", origin_of(v)),
             [first, over = over] { return norm(values_of(first), over, !over.empty()); });
}
void WeightNorm::fields(Fields& f) {
  f("parametrizations.weight.original0", g)("parametrizations.weight.original1", v);
}
Variable WeightNorm::weight(bool) const { return v * (g / norm(v, over, true)); }

SpectralNorm::SpectralNorm(Variable weight, const Options& options) : o(options), original(std::move(weight)) {
  o.dim = check_weight("SpectralNorm", original, o.dim);
  LOCKSTEP_CHECK(o.iterations > 0, "[SpectralNorm] expected iterations > 0, got ", o.iterations);
  const Tensor m = as_matrix(values_of(original), int(o.dim));
  u = unit(randn({m.size(0)}, {m.dtype(), m.device()}), o.eps);
  v = unit(randn({m.size(1)}, {m.dtype(), m.device()}), o.eps);
  power_steps(m, u, v, 15, o.eps);
}
void SpectralNorm::fields(Fields& f) {
  f("parametrizations.weight.original", original);
  f("parametrizations.weight.0._u", u)("parametrizations.weight.0._v", v);
}
Variable SpectralNorm::weight(bool training) {
  const Variable m = as_matrix(original, int(o.dim));
  if (training) power_steps(m.tensor(), u, v, o.iterations, o.eps);
  // Copy u and v, because they may change before backward.
  const Tensor left = u.to(m.dtype()).clone(), right = v.to(m.dtype()).clone();
  return original / sum(Variable(left) * matmul(m, Variable(right)));
}

void update_bn(Module& model, const std::function<void()>& pass) {
  std::vector<std::pair<Module*, bool>> modes;
  std::vector<std::pair<BatchNorm*, std::optional<double>>> momenta;
  const auto restore = [&] {
    // train() also sets the modules below `module`. These come later in `modes`, and are then set to their own mode.
    for (const auto& [module, training] : modes) module->train(training);
    for (const auto& [norm, momentum] : momenta) norm->o.momentum = momentum;
  };
  // In a scope of optim::WeightAverage, the current statistics are saved with the buffers that its end restores.
  std::shared_ptr<OtherValues> saved_values;
  for (const Variable& p : model.parameters())
    if (!saved_values) saved_values = stand_in(p).lock();
  for (const auto& [name, module] : model.named_modules()) {
    modes.emplace_back(module, module->is_training());
    auto* norm = dynamic_cast<BatchNorm*>(module);
    if (!norm || !norm->o.track) continue;
    for (const Tensor& buffer : {norm->running_mean, norm->running_var, norm->num_batches_tracked})
      if (saved_values && std::none_of(saved_values->begin(), saved_values->end(),
                                       [&](const auto& one) { return one.first.storage() == buffer.storage(); }))
        saved_values->emplace_back(buffer, buffer.clone());
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
