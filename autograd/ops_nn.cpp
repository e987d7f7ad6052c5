// Derivatives of layers: convolution, pooling, softmax and norms.
#include <memory>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/grad_wish.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

Tensor tensor_or_none(const Variable& x) { return x.defined() ? x.tensor() : Tensor(); }

Variable mean_of(const Variable& x, const Dims& dims) { return mean(x, dims, true); }

template <class T> T sum_channels(const T& grad) { return sum(grad, {0, 2, 3}); }

/// Differentiable versions of conv2d_grad_input and (below) conv2d_grad_weight. Both are linear in each operand, so
/// their derivatives are these two functions and conv2d.
Variable conv2d_grad_input_of(const Variable& g, const Variable& w, const Shape& x_shape, const ConvArgs& args) {
  return on_tape("conv2d_grad_input", {&g, &w}, conv2d_grad_input(g.tensor(), w.tensor(), x_shape, args),
                 [g = Saved(g), w = Saved(w), shape = w.shape(), args](auto& back) {
                   const Variable x = back.grad();
                   const auto kept_g = back.input(0, g), kept_w = back.input(1, w);
                   if (back.needs(0)) give_value(back, 0, conv2d(x, kept_w, {}, args));
                   if (back.needs(1)) give_value(back, 1, conv2d_grad_weight_of(kept_g, x, shape, args));
                 });
}

struct Conv2dBackward {
  Saved x, w;
  Shape x_shape, w_shape;
  ConvArgs args;

  void operator()(Backward& back) const {
    if (back.needs(1)) {
      WeightBiasGrad grads = conv2d_grad_weight(back.grad(), x.get("conv2d"), w_shape, args, back.needs(2));
      back.give(1, std::move(grads.weight));
      back.give(2, std::move(grads.bias));
    } else if (back.needs(2)) {
      back.give(2, sum_channels(back.grad()));
    }
    if (back.needs(0)) back.give(0, conv2d_grad_input(back.grad(), w.get("conv2d"), x_shape, args));
  }
  void operator()(RecordedBackward& back) const {
    const Variable& g = back.grad();
    if (back.needs(0)) back.give(0, conv2d_grad_input_of(g, back.input(1, w), x_shape, args));
    if (back.needs(1)) back.give(1, conv2d_grad_weight_of(g, back.input(0, x), w_shape, args));
    if (back.needs(2)) back.give(2, sum_channels(g));
  }
};

}  // namespace

Variable conv2d_grad_weight_of(const Variable& g, const Variable& x, const Shape& w_shape, const ConvArgs& args) {
  return on_tape("conv2d_grad_weight", {&g, &x},
                 conv2d_grad_weight(g.tensor(), x.tensor(), w_shape, args, false).weight,
                 [g = Saved(g), x = Saved(x), shape = x.shape(), args](auto& back) {
                   const Variable weight = back.grad();
                   const auto kept_g = back.input(0, g), kept_x = back.input(1, x);
                   if (back.needs(0)) give_value(back, 0, conv2d(kept_x, weight, {}, args));
                   if (back.needs(1)) give_value(back, 1, conv2d_grad_input_of(kept_g, weight, shape, args));
                 });
}

Variable conv2d(const Variable& input, const Variable& weight, const Variable& shift, const ConvArgs& args) {
  const Variable x = Autocast::low(input), w = Autocast::low(weight), bias = Autocast::low(shift);
  Tensor out = conv2d(x.tensor(), w.tensor(), tensor_or_none(bias), args);
  if (!needs_grad({&x, &w, &bias})) return out;
  const Saved kept_x = w.requires_grad() ? Saved(x) : Saved(), kept_w = x.requires_grad() ? Saved(w) : Saved();
  return record("conv2d", {&x, &w, &bias}, std::move(out), Conv2dBackward{kept_x, kept_w, x.shape(), w.shape(), args});
}

Variable conv1d(const Variable& x, const Variable& w, const Variable& bias, int64_t stride, int64_t padding,
                int64_t dilation, int64_t groups) {
  LOCKSTEP_CHECK(x.dim() == 3 && w.dim() == 3,
                 "[conv1d] expected an input (N, C, L) and a weight (K, C / groups, S), got ", x.shape(), " and ",
                 w.shape(), "; unsqueeze() adds a missing dim");
  const ConvArgs args{.stride = {1, stride}, .padding = {0, padding}, .dilation = {1, dilation}, .groups = groups};
  return conv2d(x.unsqueeze(2), w.unsqueeze(2), bias, args).squeeze(2);
}

namespace {

struct MaxPoolBackward {
  Tensor at;
  Shape shape;

  void operator()(Backward& back) const { back.give(0, max_pool2d_grad(back.grad(), at, shape)); }
  void operator()(RecordedBackward& back) const {
    const Shape planes{shape[0], shape[1], shape[2] * shape[3]};
    const Variable none = zeros(planes, {back.grad().dtype(), back.grad().device()});
    back.give(0, scatter_add(none, 2, at.flatten(2).to(i64), back.grad().flatten(2)).view(shape));
  }
};

}  // namespace

Variable max_pool2d(const Variable& x, const PoolArgs& args) {
  ValuesIndices result = max_pool2d(x.tensor(), args);
  if (!needs_grad({&x})) return std::move(result.values);
  return record("max_pool2d", {&x}, std::move(result.values), MaxPoolBackward{std::move(result.indices), x.shape()});
}

VariableIndices max_pool2d_indices(const Variable& x, const PoolArgs& args) {
  const Tensor places = max_pool2d(x.tensor(), args).indices.to(i64).contiguous();
  return {gather(x.flatten(2), 2, places.flatten(2)).reshape(places.shape()), places};
}

namespace {

struct SoftmaxBackward {
  const char* name;
  bool log;
  int64_t dim;
  Saved out;

  void operator()(Backward& back) const { back.give(0, softmax_grad(log, back.grad(), out.get(name), dim)); }
  void operator()(RecordedBackward& back) const {
    const Variable y = back.output(out), g = back.grad();
    const Dims dims = y.dim() == 0 ? Dims{} : Dims{dim};
    back.give(0, log ? sub(g, mul(exp(y), sum(g, dims, true))) : mul(y, sub(g, sum(mul(g, y), dims, true))));
  }
};

Variable record_softmax(const char* name, bool log, const Variable& x, int64_t dim, Tensor out) {
  if (!needs_grad({&x})) return out;
  SoftmaxBackward derivative{name, log, dim, out};
  return record(name, {&x}, std::move(out), std::move(derivative));
}

}  // namespace

Variable softmax(const Variable& input, int64_t dim) {
  const Variable x = Autocast::high(input);
  return record_softmax("softmax", false, x, dim, softmax(x.tensor(), dim));
}

Variable log_softmax(const Variable& input, int64_t dim) {
  const Wide wide(input);  // in f32: the derivative exponentiates the result
  const Variable x = wide(input);
  return wide.round(record_softmax("log_softmax", true, x, dim, log_softmax(x.tensor(), dim)));
}

namespace {
/// Gives the gradients of normalised(x) * weight + bias. `channels`: the shape to which weight is reshaped before the
/// product; empty: no reshape.
template <class Fn>
void give_norm(const RecordedBackward& back, const Saved& x, const Saved& weight, bool has_bias, Fn normalised,
               const Shape& channels = {}) {
  const bool by_channel = channels.rank() > 0;
  if (has_bias && back.needs(2))
    back.give(2, by_channel ? sum_to(back.grad(), channels).reshape({channels[1]}) : back.grad());
  back.through({&x, &weight}, [&](const std::vector<Variable>& inputs) {
    const Variable y = normalised(inputs[0]);
    if (!inputs[1].defined()) return y;
    return mul(y, by_channel ? inputs[1].reshape(channels) : inputs[1]);
  });
}

/// The derivative of layer norm or RMS norm over the trailing dims. If another use of x (a residual) has already given
/// its gradient, the kernel adds to it. It also computes the values that the node of x wishes for (GradWish).
struct NormBackward {
  Saved x, weight;
  Tensor mean, rstd;
  Shape normalized;
  AddNormArgs args;
  const char* name;
  std::shared_ptr<GradWish> wish;

  void operator()(Backward& back) const {
    const NormResult saved{{}, mean, rstd};
    const bool with_bias = args.centered && back.needs(2);
    const Tensor sum = back.partial(0);
    GradWish* const wished = back.needs(0) ? wish.get() : nullptr;
    GradWish* const dropped = wished && wished->p > 0 ? wished : nullptr;
    GradWish* const sums = dropped ? dropped->next.get() : wished;
    AddNormArgs options = args;
    options.p = dropped ? dropped->p : 0;
    if (dropped) options.key = dropped->key;
    const bool with_sums = sums && normalized.rank() == 1, norm_only = !sum.defined() && !dropped && !with_sums;
    AddNormGrad grads =
        !norm_only ? add_norm_grad(back.grad(), sum, x.get(name), saved, normalized, weight.get(name), with_bias,
                                   with_sums, options)
        : args.centered
            ? AddNormGrad{layer_norm_grad(back.grad(), x.get(name), saved, normalized, weight.get(name), with_bias)}
            : AddNormGrad{rms_norm_grad(back.grad(), x.get(name), rstd, weight.get(name))};
    if (with_sums) sums->set(dropped ? grads.dropped : grads.norm.x, std::move(grads.sums));
    if (dropped) dropped->set(grads.norm.x, std::move(grads.dropped));
    if (!sum.defined()) back.give(0, std::move(grads.norm.x));
    back.give(1, std::move(grads.norm.weight));
    if (args.centered) back.give(2, std::move(grads.norm.bias));
  }
  void operator()(RecordedBackward& back) const {
    Dims dims;
    for (int d = 0; d < normalized.rank(); ++d) dims.push_back(d - normalized.rank());
    give_norm(back, x, weight, args.centered, [&](const Variable& v) {
      if (!args.centered) return mul(v, rsqrt(add_scalar(mean_of(square(v), dims), args.eps)));
      return mul(sub(v, mean_of(v, dims)), rsqrt(add_scalar(var(v, dims, 0, true), args.eps)));
    });
  }
};

Variable record_norm(const Variable& x, const Variable& weight, const Variable& bias, NormResult result,
                     const Shape& normalized, const AddNormArgs& args) {
  const char* const name = args.centered ? "layer_norm" : "rms_norm";
  const NormBackward derivative{x, weight, result.mean, result.rstd, normalized, args, name, wish_of(x)};
  if (args.centered) return record(name, {&x, &weight, &bias}, std::move(result.out), derivative);
  return record(name, {&x, &weight}, std::move(result.out), derivative);
}

}  // namespace

Variable layer_norm(const Variable& input, const Shape& normalized, const Variable& scale, const Variable& shift,
                    double eps) {
  const auto [x, weight, bias] = Autocast::of_norm(input, scale, shift);
  NormResult result = layer_norm(x.tensor(), normalized, tensor_or_none(weight), tensor_or_none(bias), eps);
  if (!needs_grad({&x, &weight, &bias})) return std::move(result.out);
  return record_norm(x, weight, bias, std::move(result), normalized, {.eps = eps});
}

Variable rms_norm(const Variable& input, const Variable& scale, double eps) {
  const auto [x, weight, none] = Autocast::of_norm(input, scale, {});
  NormResult result = rms_norm(x.tensor(), tensor_or_none(weight), eps);
  if (!needs_grad({&x, &weight})) return std::move(result.out);
  return record_norm(x, weight, none, std::move(result), {x.size(-1)}, {.centered = false, .eps = eps});
}

SumAndNorm add_norm(const Variable& residual, const Variable& x, const Shape& normalized, const Variable& weight,
                    const Variable& bias, const AddNormArgs& args, bool training, const PartOf& part) {
  LOCKSTEP_CHECK(args.p >= 0 && args.p <= 1, "[add_norm] expected p in [0, 1], got ", args.p);
  LOCKSTEP_CHECK(args.centered || (!bias.defined() && normalized.rank() == 1),
                 "[add_norm] expected an RMS norm (centered is false) over one dim and without bias, got dims ",
                 normalized, bias.defined() ? " and a bias" : "", "; set centered for a layer norm");
  const auto alike = [&](const Variable& y) {
    return !y.defined() || (y.dtype() == x.dtype() && y.device() == x.device());
  };
  const bool drops = training && args.p > 0,
             widens = Autocast::enabled() && (x.dtype() == f16 || x.dtype() == bf16) && !weight.defined();
  if (widens || !alike(residual) || !alike(weight) || !alike(bias) || residual.shape() != x.shape() ||
      (drops && part.count > 1)) {
    const Variable sum = add_dropout(residual, x, args.p, training, part);
    return {sum, args.centered ? layer_norm(sum, normalized, weight, bias, args.eps) : rms_norm(sum, weight, args.eps)};
  }
  AddNormArgs options = args;
  options.p = drops ? args.p : 0;
  if (drops) options.key = next_random_key(x.device());
  AddNorm made =
      add_norm(residual.tensor(), x.tensor(), normalized, tensor_or_none(weight), tensor_or_none(bias), options);
  // Sum and norm each get a node, although one kernel computed both, because other operations read the sum, too.
  Variable sum = made.sum;
  if (drops) sum = record_add_dropout(residual, x, std::move(made.sum), options.p, options.key, {});
  else if (needs_grad({&residual, &x}))
    sum = with_wish(record("add", {&residual, &x}, std::move(made.sum),
                           [](auto& back) {
                             back.give(0, back.grad());
                             back.give(1, back.grad());
                           }),
                    wish_of(x));  // x gets the same gradient
  if (!needs_grad({&sum, &weight, &bias})) return {sum, std::move(made.norm.out)};
  Variable norm = record_norm(sum, weight, bias, std::move(made.norm), normalized, options);
  return {std::move(sum), std::move(norm)};
}

namespace {
struct BatchNormBackward {
  Saved x, weight;
  NormResult result;
  bool training;
  double eps;
  static constexpr const char* name = "batch_norm";

  void operator()(Backward& back) const {
    NormGrad grads = batch_norm_grad(back.grad(), x.get(name), result, weight.get(name), back.needs(2), training);
    back.give(0, std::move(grads.x));
    back.give(1, std::move(grads.weight));
    back.give(2, std::move(grads.bias));
  }
  void operator()(RecordedBackward& back) const {
    Shape channels = Dims::filled(x.get(name).dim(), 1);
    channels[1] = x.get(name).size(1);
    Dims dims{0};
    for (int d = 2; d < channels.rank(); ++d) dims.push_back(d);
    const auto normalised = [&](const Variable& v) {
      if (!training) return mul(sub(v, result.mean.reshape(channels)), result.rstd.reshape(channels));
      return mul(sub(v, mean(v, dims, true)), rsqrt(add_scalar(var(v, dims, 0, true), eps)));
    };
    give_norm(back, x, weight, true, normalised, channels);
  }
};
}  // namespace

Variable batch_norm(const Variable& input, const Variable& scale, const Variable& shift, const Tensor& running_mean,
                    const Tensor& running_var, bool training, double momentum, double eps) {
  const auto [x, weight, bias] = Autocast::of_norm(input, scale, shift);
  NormResult result = batch_norm(x.tensor(), tensor_or_none(weight), tensor_or_none(bias), running_mean, running_var,
                                 training, momentum, eps);
  if (!needs_grad({&x, &weight, &bias})) return std::move(result.out);
  Tensor out = std::move(result.out);
  result.out = {};
  return record(BatchNormBackward::name, {&x, &weight, &bias}, std::move(out),
                BatchNormBackward{x, weight, std::move(result), training, eps});
}

}  // namespace lockstep
