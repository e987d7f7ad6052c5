// Group norm, instance norm and norms of weights. See norm.h.
#include "extensions/layers/norm.h"

#include "autograd/autocast.h"
#include "nn/init.h"

namespace lockstep {

Variable group_norm(const Variable& input, int64_t groups, const Variable& scale, const Variable& shift, double eps) {
  const Wide wide(input);
  const Variable x = wide(input), weight = wide(scale), bias = wide(shift);
  LOCKSTEP_CHECK(x.dim() >= 2 && groups >= 1 && x.size(1) % groups == 0,
                 "[group_norm] expected x (N, C, ...) with C a multiple of ", groups, " groups, got ", x.shape(),
                 "; change the number of groups or channels");
  for (const Variable* affine : {&weight, &bias}) {
    LOCKSTEP_CHECK(!affine->defined() || affine->shape() == Shape{x.size(1)},
                   "[group_norm] expected weight and bias of shape ", Shape{x.size(1)}, ", got ", affine->shape());
  }
  if (x.numel() == 0) return wide.round(x);
  // Each group is a row of a layer norm; then each channel is scaled and shifted.
  const int64_t rows = x.size(0) * groups, columns = x.numel() / rows;
  Variable y = layer_norm(x.reshape({rows, columns}), {columns}, {}, {}, eps).reshape(x.shape());
  Shape channels = Dims::filled(x.dim() - 1, 1);
  channels[0] = x.size(1);
  if (weight.defined()) y = mul(y, weight.reshape(channels));
  if (bias.defined()) y = add(y, bias.reshape(channels));
  return wide.round(y);
}

namespace nn {

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

GroupNorm::GroupNorm(const Options& o) : groups(o.groups), channels(o.channels), eps(o.eps) {
  LOCKSTEP_CHECK(groups > 0 && channels % groups == 0, "[GroupNorm] expected groups to divide ", channels,
                 " channels, got ", groups);
  if (!o.affine) return;
  weight = parameter({channels}, 1);
  bias = parameter({channels}, 0);
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

WeightNorm::WeightNorm(Variable weight, const Options& o) : v(std::move(weight)) {
  const int dim = check_weight("WeightNorm", v, o.dim);
  Shape shape;
  for (int d = 0; o.dim != -1 && d < v.dim(); ++d) {
    shape.push_back(d == dim ? v.size(d) : 1);
    if (d != dim) over.push_back(d);
  }
  g = parameter(shape);
  const Variable first(v.tensor());  // keeps the tensor when v is replaced
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

}  // namespace nn
}  // namespace lockstep
