// Computes 3-d convolutions by 2-d ones. conv3d makes one image for each output depth: its channels are those of all
// input depths that the kernel covers there. conv_transpose3d makes one image for each pair of an input depth and a
// kernel depth, and adds it at the output depth that the pair contributes to.
#include "extensions/vision/conv.h"

#include <algorithm>

#include "autograd/autocast.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "tensor/flops.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

Tensor weight_gradient(const Tensor& g, const Tensor& x, const Shape& w_shape, const ConvArgs& args) {
  return conv2d_grad_weight(g, x, w_shape, args, false).weight;
}
Variable weight_gradient(const Variable& g, const Variable& x, const Shape& w_shape, const ConvArgs& args) {
  return conv2d_grad_weight_of(g, x, w_shape, args);
}

void check_triple(const char* op, const char* name, const Dims& triple, int64_t least) {
  LOCKSTEP_CHECK(triple.rank() == 3 && *std::min_element(triple.begin(), triple.end()) >= least, "[", op,
                 "] expected 3 values >= ", least, " for ", name, ", got ", triple);
}

void check_volumes(const char* op, const char* weight, const Variable& x, const Variable& w, const ConvArgs& args) {
  LOCKSTEP_CHECK(x.dim() == 5 && w.dim() == 5, "[", op, "] expected an input (N, C, D, H, W) and a weight ", weight,
                 ", got ", x.shape(), " and ", w.shape(), "; reshape them (unsqueeze() adds a dim)");
  check_triple(op, "stride", args.stride, 1);
  check_triple(op, "padding", args.padding, 0);
  check_triple(op, "dilation", args.dilation, 1);
}

/// Size of dim d + 2 of a transposed convolution's result, before it is checked.
int64_t transposed_size(const char* op, const Shape& x, const Shape& w, const ConvArgs& args,
                        const Dims& output_padding, int d) {
  LOCKSTEP_CHECK(output_padding[d] < std::max(args.stride[d], args.dilation[d]), "[", op,
                 "] expected output_padding below the larger of stride and dilation, got ", output_padding);
  return (x[d + 2] - 1) * args.stride[d] - 2 * args.padding[d] + args.dilation[d] * (w[d + 2] - 1) + output_padding[d] +
         1;
}

/// The options along height and width of a 3-d convolution, for the 2-d convolution that computes it.
ConvArgs behind_depth(const ConvArgs& a) {
  return {.stride = {a.stride[1], a.stride[2]},
          .padding = {a.padding[1], a.padding[2]},
          .dilation = {a.dilation[1], a.dilation[2]},
          .groups = a.groups};
}

}  // namespace

Tensor conv_transpose2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args,
                        const Dims& output_padding) {
  const char* op = "conv_transpose2d";
  check_product(op, x, w);
  check_pair(op, "stride", args.stride, 1);
  check_pair(op, "padding", args.padding, 0);
  check_pair(op, "dilation", args.dilation, 1);
  check_pair(op, "output_padding", output_padding, 0);
  LOCKSTEP_CHECK(x.dim() == 4 && w.dim() == 4, "[", op,
                 "] expected an input (N, C, H, W) and a weight (C, K / groups, R, S), got ", x.shape(), " and ",
                 w.shape());
  LOCKSTEP_CHECK(args.groups >= 1 && w.size(0) % args.groups == 0, "[", op, "] expected groups that divide the ",
                 w.size(0), " input channels, got ", args.groups);
  LOCKSTEP_CHECK(x.size(1) == w.size(0), "[", op, "] expected an input with ", w.size(0), " channels (weight ",
                 w.shape(), ", groups ", args.groups, "), got ", x.shape());
  Shape shape{x.size(0), w.size(1) * args.groups};
  for (int d = 0; d < 2; ++d) {
    shape.push_back(transposed_size(op, x.shape(), w.shape(), args, output_padding, d));
    LOCKSTEP_CHECK(x.size(d + 2) >= 1 && shape[d + 2] >= 1, "[", op, "] expected a result of at least one pixel, got ",
                   shape, " for input ", x.shape(), "; use a larger input or less padding");
  }
  if (bias.defined()) {
    check_product(op, x, bias);
    LOCKSTEP_CHECK(bias.shape() == Shape{shape[1]}, "[", op, "] expected a bias ", Shape{shape[1]}, ", got ",
                   bias.shape());
  }
  if (bias.defined() && size_of(x.dtype()) == 2)
    // Add the bias in f32, so that the sum is rounded only once.
    return conv_transpose2d(x.to(f32), w.to(f32), bias.to(f32), args, output_padding).to(x.dtype());
  const Tensor images = as_images(x);
  Tensor out = empty_images(shape, x, is_channels_last(images));
  MacCounter::add(x.numel() * w.size(1) * w.size(2) * w.size(3));
  kernels::conv2d_grad_input(x.device(), images, w.contiguous(), args, out);
  if (bias.defined()) add_(out, bias.view({shape[1], 1, 1}));
  return out;
}

Variable conv_transpose2d(const Variable& input, const Variable& weight, const Variable& shift, const ConvArgs& args,
                          const Dims& output_padding) {
  const Variable x = Autocast::low(input), w = Autocast::low(weight), bias = Autocast::low(shift);
  Tensor out =
      conv_transpose2d(x.tensor(), w.tensor(), bias.defined() ? bias.tensor() : Tensor(), args, output_padding);
  // A transposed convolution computes the input gradient of a convolution C. So the gradient with respect to x is C
  // applied to g, and the gradient with respect to w is C's weight gradient with x and g swapped.
  return on_tape("conv_transpose2d", {&x, &w, &bias}, std::move(out),
                 [x = w.requires_grad() ? Saved(x) : Saved(), w = x.requires_grad() ? Saved(w) : Saved(),
                  shape = x.shape(), w_shape = w.shape(), args, output_padding](auto& back) {
                   using T = Value<decltype(back)>;
                   const T& g = back.grad();
                   if (back.needs(2)) back.give(2, sum(g, {0, 2, 3}));
                   // Output padding that is below the dilation may be as large as the stride or larger. For each
                   // whole stride of it, the convolution of g returns an extra pixel, which narrow() removes.
                   const int64_t rows = output_padding[0] / args.stride[0],
                                 columns = output_padding[1] / args.stride[1];
                   if (back.needs(0))
                     back.give(0, conv2d(g, back.input(1, w), T(), args).narrow(2, 0, shape[2]).narrow(3, 0, shape[3]));
                   if (back.needs(1)) {
                     T from = back.input(0, x);
                     if (rows + columns > 0) from = pad(from, {0, columns, 0, rows});
                     back.give(1, weight_gradient(from, g, w_shape, args));
                   }
                 });
}

Variable conv3d(const Variable& x, const Variable& w, const Variable& bias, const ConvArgs& args) {
  check_volumes("conv3d", "(K, C / groups, T, R, S)", x, w, args);
  LOCKSTEP_CHECK(args.groups >= 1 && w.size(0) % args.groups == 0 && x.size(1) == w.size(1) * args.groups,
                 "[conv3d] expected an input with ", w.size(1) * args.groups, " channels, and groups >= 1 that divide ",
                 w.size(0), " channels of the result (weight ", w.shape(), ", groups ", args.groups, "), got ",
                 x.shape(), "; change the weight, or groups");
  Dims out;
  for (int d = 0; d < 3; ++d) {
    const int64_t padded = x.size(d + 2) + 2 * args.padding[d], reach = args.dilation[d] * (w.size(d + 2) - 1) + 1;
    LOCKSTEP_CHECK(w.size(d + 2) >= 1 && reach <= padded,
                   "[conv3d] expected a kernel that fits the padded input, got weight ", w.shape(), ", dilation ",
                   args.dilation, ", padding ", args.padding, " for input ", x.shape(),
                   w.size(d + 2) < 1 ? "; use a larger kernel" : "; use more padding, or a smaller kernel");
    out.push_back((padded - reach) / args.stride[d] + 1);
  }
  const int64_t n = x.size(0), c = x.size(1), k = w.size(0), taps = w.size(2), step = args.stride[0];
  const int64_t depth = args.padding[0];
  const Variable padded = depth > 0 ? pad(x, {0, 0, 0, 0, depth, depth}) : x;
  std::vector<Variable> tap_inputs;  // per tap: (N, output depth, C, H, W)
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t first = t * args.dilation[0];
    tap_inputs.push_back(padded.slice(2, first, first + (out[0] - 1) * step + 1, step).transpose(1, 2));
  }
  const Variable images =
      (taps == 1 ? tap_inputs[0] : stack(tap_inputs, 3)).reshape({n * out[0], c * taps, x.size(3), x.size(4)});
  return conv2d(images, w.reshape({k, w.size(1) * taps, w.size(3), w.size(4)}), bias, behind_depth(args))
      .reshape({n, out[0], k, out[1], out[2]})
      .transpose(1, 2)
      .contiguous();
}

Variable conv_transpose3d(const Variable& input, const Variable& weight, const Variable& bias, const ConvArgs& args,
                          const Dims& output_padding) {
  const char* const op = "conv_transpose3d";
  check_volumes(op, "(C, K / groups, T, R, S)", input, weight, args);
  check_triple(op, "output_padding", output_padding, 0);
  LOCKSTEP_CHECK(input.size(1) == weight.size(0) && args.groups >= 1 && input.size(1) % args.groups == 0, "[", op,
                 "] expected an input with ", weight.size(0), " channels, and groups >= 1 that divide them (weight ",
                 weight.shape(), ", groups ", args.groups, "), got ", input.shape(), "; change the weight, or groups");
  Dims out;
  for (int d = 0; d < 3; ++d) {
    out.push_back(transposed_size(op, input.shape(), weight.shape(), args, output_padding, d));
    LOCKSTEP_CHECK(input.size(d + 2) >= 1 && weight.size(d + 2) >= 1 && out[d] >= 1, "[", op,
                   "] expected a result of at least one pixel, got ", out, " for input ", input.shape(),
                   "; use a larger input or kernel, or less padding");
  }
  const int64_t n = input.size(0), c = input.size(1), k = weight.size(1) * args.groups, taps = weight.size(2);
  LOCKSTEP_CHECK(!bias.defined() || bias.shape() == Shape{k}, "[", op, "] expected a bias ", Shape{k}, ", got ",
                 bias.shape(), "; reshape the bias");
  const Wide wide(input);  // the sum is rounded once
  const Variable x = wide(input), w = wide(weight);
  const int64_t depth = x.size(2), step = args.stride[0], length = (depth - 1) * step + 1;
  const Variable images = conv_transpose2d(x.transpose(1, 2).reshape({n * depth, c, x.size(3), x.size(4)}),
                                           w.reshape({c, w.size(1) * taps, w.size(3), w.size(4)}), {},
                                           behind_depth(args), {output_padding[1], output_padding[2]});
  const Variable made = images.reshape({n, depth, k, taps, out[1], out[2]}).transpose(1, 2);
  Variable sum;
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t front = t * args.dilation[0] - args.padding[0];
    if (front + length <= 0 || front >= out[0]) continue;  // entirely in the cropped padding
    Variable part = made.select(3, t);
    if (step > 1)
      part = pad(part.unsqueeze(3), {0, 0, 0, 0, 0, step - 1})
                 .reshape({n, k, depth * step, out[1], out[2]})
                 .narrow(2, 0, length);
    part = pad(part, {0, 0, 0, 0, front, out[0] - front - length});
    sum = sum.defined() ? add(sum, part) : part;
  }
  if (!sum.defined()) sum = zeros({n, k, out[0], out[1], out[2]}, {made.dtype(), made.device()});
  if (bias.defined()) sum = add(sum, wide(bias).to(sum.dtype()).reshape({k, 1, 1, 1}));
  return wide.round(sum);
}

Variable conv_transpose1d(const Variable& x, const Variable& w, const Variable& bias, int64_t stride, int64_t padding,
                          int64_t output_padding, int64_t dilation, int64_t groups) {
  LOCKSTEP_CHECK(x.dim() == 3 && w.dim() == 3,
                 "[conv_transpose1d] expected an input (N, C, L) and a weight (C, K / groups, S), got ", x.shape(),
                 " and ", w.shape(), "; reshape them (unsqueeze() adds a dim)");
  const ConvArgs args{.stride = {1, stride}, .padding = {0, padding}, .dilation = {1, dilation}, .groups = groups};
  return conv_transpose2d(x.unsqueeze(2), w.unsqueeze(2), bias, args, {0, output_padding}).squeeze(2);
}

}  // namespace lockstep
