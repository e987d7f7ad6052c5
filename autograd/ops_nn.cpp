// Derivatives of layers: convolution, pooling, softmax, the norms, dropout, embedding.
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

Tensor tensor_or_none(const Variable& x) { return x.defined() ? x.tensor() : Tensor(); }

Tensor sum_channels(const Tensor& grad) { return sum(grad, {0, 2, 3}); }

}  // namespace

Variable conv2d(const Variable& input, const Variable& weight, const Variable& shift, const ConvArgs& args) {
  const Variable x = Autocast::low(input), w = Autocast::low(weight), bias = Autocast::low(shift);
  Tensor out = conv2d(x.tensor(), w.tensor(), tensor_or_none(bias), args);
  if (!needs_grad({&x, &w, &bias})) return out;
  const Saved kept_x = w.requires_grad() ? Saved(x) : Saved(), kept_w = x.requires_grad() ? Saved(w) : Saved();
  return record("conv2d", {&x, &w, &bias}, std::move(out),
                [x = kept_x, w = kept_w, x_shape = x.shape(), w_shape = w.shape(), args](Backward& back) {
                  if (back.needs(1)) {
                    WeightBiasGrad grads =
                        conv2d_grad_weight(back.grad(), x.get("conv2d"), w_shape, args, back.needs(2));
                    back.give(1, std::move(grads.weight));
                    back.give(2, std::move(grads.bias));
                  } else if (back.needs(2)) {
                    back.give(2, sum_channels(back.grad()));
                  }
                  if (back.needs(0)) back.give(0, conv2d_grad_input(back.grad(), w.get("conv2d"), x_shape, args));
                });
}

Variable conv1d(const Variable& x, const Variable& w, const Variable& bias, int64_t stride, int64_t padding,
                int64_t dilation, int64_t groups) {
  LOCKSTEP_CHECK(x.dim() == 3 && w.dim() == 3,
                 "[conv1d] expected an input (N, C, L) and a weight (K, C / groups, S), got ", x.shape(), " and ",
                 w.shape());
  const ConvArgs args{.stride = {1, stride}, .padding = {0, padding}, .dilation = {1, dilation}, .groups = groups};
  return conv2d(x.unsqueeze(2), w.unsqueeze(2), bias, args).squeeze(2);
}

Variable conv_transpose2d(const Variable& input, const Variable& weight, const Variable& shift, const ConvArgs& args,
                          const Dims& output_padding) {
  const Variable x = Autocast::low(input), w = Autocast::low(weight), bias = Autocast::low(shift);
  Tensor out = conv_transpose2d(x.tensor(), w.tensor(), tensor_or_none(bias), args, output_padding);
  if (!needs_grad({&x, &w, &bias})) return out;
  const Saved kept_x = w.requires_grad() ? Saved(x) : Saved(), kept_w = x.requires_grad() ? Saved(w) : Saved();
  // It is the gradient of a convolution, so its own gradients are that convolution and its gradient, with x and g
  // swapped.
  return record(
      "conv_transpose2d", {&x, &w, &bias}, std::move(out),
      [x = kept_x, w = kept_w, shape = x.shape(), w_shape = w.shape(), args, output_padding](Backward& back) {
        const Tensor& g = back.grad();
        if (back.needs(2)) back.give(2, sum_channels(g));
        // That convolution gives a further pixel for each whole stride of output padding (legal below the dilation),
        // for which there is no x.
        const int64_t rows = output_padding[0] / args.stride[0], columns = output_padding[1] / args.stride[1];
        if (back.needs(0))
          back.give(0,
                    conv2d(g, w.get("conv_transpose2d"), Tensor(), args).narrow(2, 0, shape[2]).narrow(3, 0, shape[3]));
        if (back.needs(1)) {
          const Tensor& from = x.get("conv_transpose2d");
          back.give(1, conv2d_grad_weight(rows + columns > 0 ? pad(from, {0, columns, 0, rows}) : from, g, w_shape,
                                          args, false)
                           .weight);
        }
      });
}

Variable max_pool2d(const Variable& x, const PoolArgs& args) {
  ValuesIndices result = max_pool2d(x.tensor(), args);
  if (!needs_grad({&x})) return std::move(result.values);
  return record("max_pool2d", {&x}, std::move(result.values),
                [at = std::move(result.indices), shape = x.shape()](Backward& back) {
                  back.give(0, max_pool2d_grad(back.grad(), at, shape));
                });
}

Variable avg_pool2d(const Variable& x, const PoolArgs& args) {
  Tensor out = avg_pool2d(x.tensor(), args);
  if (!needs_grad({&x})) return out;
  return record("avg_pool2d", {&x}, std::move(out),
                [shape = x.shape(), args](Backward& back) { back.give(0, avg_pool2d_grad(back.grad(), shape, args)); });
}

Variable adaptive_avg_pool2d(const Variable& x, int64_t height, int64_t width) {
  Tensor out = adaptive_avg_pool2d(x.tensor(), height, width);
  if (!needs_grad({&x})) return out;
  return record("adaptive_avg_pool2d", {&x}, std::move(out),
                [shape = x.shape()](Backward& back) { back.give(0, adaptive_avg_pool2d_grad(back.grad(), shape)); });
}

namespace {

Variable record_softmax(const char* name, bool log, const Variable& x, int64_t dim, Tensor out) {
  if (!needs_grad({&x})) return out;
  Saved kept = out;
  return record(name, {&x}, std::move(out), [name, log, dim, out = std::move(kept)](Backward& back) {
    back.give(0, softmax_grad(log, back.grad(), out.get(name), dim));
  });
}

}  // namespace

Variable softmax(const Variable& input, int64_t dim) {
  const Variable x = Autocast::high(input);
  return record_softmax("softmax", false, x, dim, softmax(x.tensor(), dim));
}

Variable log_softmax(const Variable& input, int64_t dim) {
  const Wide wide(input);  // its derivative has exp() of what it gave
  const Variable x = wide(input);
  return wide.round(record_softmax("log_softmax", true, x, dim, log_softmax(x.tensor(), dim)));
}

Variable layer_norm(const Variable& input, const Shape& normalized, const Variable& scale, const Variable& shift,
                    double eps) {
  const Variable x = Autocast::high(input), weight = Autocast::high(scale), bias = Autocast::high(shift);
  NormResult result = layer_norm(x.tensor(), normalized, tensor_or_none(weight), tensor_or_none(bias), eps);
  if (!needs_grad({&x, &weight, &bias})) return std::move(result.out);
  Tensor out = std::move(result.out);
  result.out = {};
  return record("layer_norm", {&x, &weight, &bias}, std::move(out),
                [x = Saved(x), weight = Saved(weight), result = std::move(result), normalized](Backward& back) {
                  NormGrad grads = layer_norm_grad(back.grad(), x.get("layer_norm"), result, normalized,
                                                   weight.get("layer_norm"), back.needs(2));
                  back.give(0, std::move(grads.x));
                  back.give(1, std::move(grads.weight));
                  back.give(2, std::move(grads.bias));
                });
}

Variable rms_norm(const Variable& input, const Variable& scale, double eps) {
  const Variable x = Autocast::high(input), weight = Autocast::high(scale);
  NormResult result = rms_norm(x.tensor(), tensor_or_none(weight), eps);
  if (!needs_grad({&x, &weight})) return std::move(result.out);
  return record("rms_norm", {&x, &weight}, std::move(result.out),
                [x = Saved(x), weight = Saved(weight), rstd = std::move(result.rstd)](Backward& back) {
                  NormGrad grads = rms_norm_grad(back.grad(), x.get("rms_norm"), rstd, weight.get("rms_norm"));
                  back.give(0, std::move(grads.x));
                  back.give(1, std::move(grads.weight));
                });
}

Variable group_norm(const Variable& input, int64_t groups, const Variable& scale, const Variable& shift, double eps) {
  const Wide wide(input);
  const Variable x = wide(input), weight = wide(scale), bias = wide(shift);
  LOCKSTEP_CHECK(x.dim() >= 2 && groups >= 1 && x.size(1) % groups == 0,
                 "[group_norm] expected x (N, C, ...) with C a multiple of ", groups, " groups, got ", x.shape());
  for (const Variable* affine : {&weight, &bias}) {
    LOCKSTEP_CHECK(!affine->defined() || affine->shape() == Shape{x.size(1)},
                   "[group_norm] expected weight and bias of shape ", Shape{x.size(1)}, ", got ", affine->shape());
  }
  if (x.numel() == 0) return wide.round(x);
  // A group is a row; then each channel has its own weight.
  const int64_t rows = x.size(0) * groups, columns = x.numel() / rows;
  Variable y = layer_norm(x.reshape({rows, columns}), {columns}, {}, {}, eps).reshape(x.shape());
  Shape channels = Dims::filled(x.dim() - 1, 1);
  channels[0] = x.size(1);
  if (weight.defined()) y = mul(y, weight.reshape(channels));
  if (bias.defined()) y = add(y, bias.reshape(channels));
  return wide.round(y);
}

Variable batch_norm(const Variable& input, const Variable& scale, const Variable& shift, const Tensor& running_mean,
                    const Tensor& running_var, bool training, double momentum, double eps) {
  const Variable x = Autocast::high(input), weight = Autocast::high(scale), bias = Autocast::high(shift);
  NormResult result = batch_norm(x.tensor(), tensor_or_none(weight), tensor_or_none(bias), running_mean, running_var,
                                 training, momentum, eps);
  if (!needs_grad({&x, &weight, &bias})) return std::move(result.out);
  Tensor out = std::move(result.out);
  result.out = {};
  return record("batch_norm", {&x, &weight, &bias}, std::move(out),
                [x = Saved(x), weight = Saved(weight), result = std::move(result), training](Backward& back) {
                  NormGrad grads = batch_norm_grad(back.grad(), x.get("batch_norm"), result, weight.get("batch_norm"),
                                                   back.needs(2), training);
                  back.give(0, std::move(grads.x));
                  back.give(1, std::move(grads.weight));
                  back.give(2, std::move(grads.bias));
                });
}

Variable dropout(const Variable& x, double p, bool training, const PartOf& part) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[dropout] expected p in [0, 1], got ", p);
  if (!training || p == 0) return x;
  const PhiloxKey key = next_random_key();  // the key, not the mask, is kept for backward
  Tensor out = dropout(x.tensor(), p, key, part);
  if (!needs_grad({&x})) return out;
  return record("dropout", {&x}, std::move(out),
                [p, key, part](Backward& back) { back.give(0, dropout(back.grad(), p, key, part)); });
}

Variable embedding(const Variable& weight, const Tensor& index, int64_t padding_index) {
  Tensor out = embedding(weight.tensor(), index);
  LOCKSTEP_CHECK(padding_index >= -1 && padding_index < weight.size(0), "[embedding] expected padding_index in [-1, ",
                 weight.size(0), "), got ", padding_index);
  if (!needs_grad({&weight})) return out;
  return record("embedding", {&weight}, std::move(out),
                [index = Saved(index), shape = weight.shape(), padding_index](Backward& back) {
                  // Few rows get a gradient: add them to what is there (a tied output layer's, say) rather than to
                  // zeros.
                  const Tensor sum = back.partial(0);
                  const Tensor whole = sum.defined() ? sum : zeros(shape, {back.grad().dtype(), back.grad().device()});
                  embedding_grad_(whole, back.grad(), index.get("embedding"), padding_index);
                  if (!sum.defined()) back.give(0, whole);
                });
}

}  // namespace lockstep
