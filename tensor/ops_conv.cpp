// Convolution and pooling: checks, output sizes, layouts. See layout.h for channels-last images.
#include "tensor/flops.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {

Tensor empty_images(const Shape& s, const Tensor& like, bool channels_last) {
  const TensorOptions options{.dtype = like.dtype(), .device = like.device()};
  return channels_last ? empty({s[0], s[2], s[3], s[1]}, options).permute({0, 3, 1, 2}) : empty(s, options);
}

void check_images(const char* op, const Tensor& x) {
  check_floating(op, x);
  LOCKSTEP_CHECK(x.dim() == 4, "[", op, "] expected an input (N, C, H, W), got ", x.shape(), "; unsqueeze() it");
}

void check_pair(const char* op, const char* name, const Dims& pair, int64_t least) {
  LOCKSTEP_CHECK(pair.rank() == 2 && pair[0] >= least && pair[1] >= least, "[", op, "] expected 2 values >= ", least,
                 " for ", name, ", got ", pair);
}

Shape pool_shape(const char* op, const Shape& x, const PoolArgs& args) {
  LOCKSTEP_CHECK(x.rank() == 4, "[", op, "] expected an input (N, C, H, W), got ", x, "; reshape it");
  check_pair(op, "kernel", args.kernel, 1);
  check_pair(op, "stride", args.stride, 1);
  check_pair(op, "padding", args.padding, 0);
  check_pair(op, "dilation", args.dilation, 1);
  Shape out{x[0], x[1]};
  for (int d = 0; d < 2; ++d) {
    const int64_t reach = args.dilation[d] * (args.kernel[d] - 1) + 1, free = x[d + 2] + 2 * args.padding[d] - reach;
    LOCKSTEP_CHECK(args.padding[d] <= reach / 2, "[", op, "] expected padding of at most half the kernel, got ",
                   args.padding, " for kernel ", args.kernel, "; use less padding");
    LOCKSTEP_CHECK(free >= 0, "[", op, "] expected a kernel that fits the padded input, got kernel ", args.kernel,
                   ", padding ", args.padding, " for input ", x, "; use a smaller kernel or dilation");
    int64_t size = (free + (args.ceil_mode ? args.stride[d] - 1 : 0)) / args.stride[d] + 1;
    if (args.ceil_mode && (size - 1) * args.stride[d] >= x[d + 2] + args.padding[d]) --size;
    out.push_back(size);
  }
  return out;
}

namespace {

/// Checks all arguments of a convolution; returns the result's shape.
Shape conv_shape(const char* op, const Shape& x, const Shape& w, const ConvArgs& args) {
  check_pair(op, "stride", args.stride, 1);
  check_pair(op, "padding", args.padding, 0);
  check_pair(op, "dilation", args.dilation, 1);
  LOCKSTEP_CHECK(x.rank() == 4 && w.rank() == 4, "[", op,
                 "] expected an input (N, C, H, W) and a weight (K, C / groups, R, S), got ", x, " and ", w,
                 "; reshape them");
  LOCKSTEP_CHECK(args.groups >= 1 && w[0] % args.groups == 0, "[", op, "] expected groups that divide the ", w[0],
                 " output channels, got ", args.groups);
  LOCKSTEP_CHECK(x[1] == w[1] * args.groups, "[", op, "] expected an input with ", w[1] * args.groups,
                 " channels (weight ", w, ", groups ", args.groups, "), got ", x, "; change the weight, or groups");
  Shape out{x[0], w[0]};
  for (int d = 0; d < 2; ++d) {
    const int64_t padded = x[d + 2] + 2 * args.padding[d], reach = args.dilation[d] * (w[d + 2] - 1) + 1;
    LOCKSTEP_CHECK(w[d + 2] >= 1 && reach <= padded, "[", op,
                   "] expected a kernel that fits the padded input, got weight ", w, ", dilation ", args.dilation,
                   ", padding ", args.padding, " for input ", x,
                   w[d + 2] < 1 ? "; use a larger kernel" : "; use more padding, or a smaller kernel");
    out.push_back((padded - reach) / args.stride[d] + 1);
  }
  return out;
}

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  check_floating(op, a);
  check_floating(op, b);
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
}

void check_bias(const char* op, const Tensor& bias, const Tensor& x, int64_t channels) {
  if (!bias.defined()) return;
  check_operands(op, bias, x);
  LOCKSTEP_CHECK(bias.shape() == Shape{channels}, "[", op, "] expected a bias ", Shape{channels}, ", got ",
                 bias.shape(), "; reshape the bias");
}

Tensor dense(const Tensor& x) { return x.defined() ? x.contiguous() : x; }

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args) {
  check_operands("conv2d", x, w);
  const Shape shape = conv_shape("conv2d", x.shape(), w.shape(), args);
  check_bias("conv2d", bias, x, w.size(0));
  const Tensor images = as_images(x);
  Tensor out = empty_images(shape, x, is_channels_last(images));
  MacCounter::add(out.numel() * w.size(1) * w.size(2) * w.size(3));
  kernels::conv2d(x.device(), images, w.contiguous(), dense(bias), args, out);
  return out;
}

Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, int64_t stride, int64_t padding, int64_t dilation,
              int64_t groups) {
  check_operands("conv1d", x, w);
  LOCKSTEP_CHECK(x.dim() == 3 && w.dim() == 3,
                 "[conv1d] expected an input (N, C, L) and a weight (K, C / groups, S), got ", x.shape(), " and ",
                 w.shape(), "; reshape them (unsqueeze() adds a dim)");
  const ConvArgs args{.stride = {1, stride}, .padding = {0, padding}, .dilation = {1, dilation}, .groups = groups};
  return conv2d(x.unsqueeze(2), w.unsqueeze(2), bias, args).squeeze(2);
}

Tensor conv2d_grad_input(const Tensor& grad, const Tensor& w, const Shape& input_shape, const ConvArgs& args) {
  check_operands("conv2d_grad_input", grad, w);
  const Shape shape = conv_shape("conv2d_grad_input", input_shape, w.shape(), args);
  LOCKSTEP_CHECK(grad.shape() == shape, "[conv2d_grad_input] expected a gradient ", shape, ", got ", grad.shape());
  const Tensor images = as_images(grad);
  Tensor out = empty_images(input_shape, grad, is_channels_last(images));
  kernels::conv2d_grad_input(grad.device(), images, w.contiguous(), args, out);
  return out;
}

WeightBiasGrad conv2d_grad_weight(const Tensor& grad, const Tensor& x, const Shape& weight_shape, const ConvArgs& args,
                                  bool with_bias) {
  check_operands("conv2d_grad_weight", grad, x);
  const Shape shape = conv_shape("conv2d_grad_weight", x.shape(), weight_shape, args);
  LOCKSTEP_CHECK(grad.shape() == shape, "[conv2d_grad_weight] expected a gradient ", shape, ", got ", grad.shape());
  const TensorOptions options{.dtype = grad.dtype(), .device = grad.device()};
  WeightBiasGrad out{empty(weight_shape, options), with_bias ? empty({weight_shape[0]}, options) : Tensor()};
  kernels::conv2d_grad_weight(grad.device(), as_images(grad), as_images(x), args, out.weight, out.bias);
  return out;
}

// --- pooling ---

ValuesIndices max_pool2d(const Tensor& x, const PoolArgs& args) {
  check_images("max_pool2d", x);
  const Shape shape = pool_shape("max_pool2d", x.shape(), args);
  LOCKSTEP_CHECK(x.size(2) * x.size(3) <= INT32_MAX, "[max_pool2d] expected planes of fewer than 2^31 elements, got ",
                 x.shape(), "; use smaller images");
  const Tensor images = as_images(x);
  const bool last = is_channels_last(images);
  ValuesIndices out{empty_images(shape, x, last), {}};
  const Tensor places = empty({0}, {.dtype = i32, .device = x.device()});
  out.indices = empty_images(shape, places, last);
  kernels::max_pool2d(x.device(), images, args, out.values, out.indices);
  return out;
}

Tensor max_pool2d_grad(const Tensor& grad, const Tensor& indices, const Shape& input_shape) {
  check_images("max_pool2d_grad", grad);
  check_defined("max_pool2d_grad", indices);
  LOCKSTEP_CHECK(grad.shape() == indices.shape() && indices.dtype() == i32 && input_shape.rank() == 4 &&
                     grad.size(0) == input_shape[0] && grad.size(1) == input_shape[1],
                 "[max_pool2d_grad] expected a gradient like the i32 indices of an input ", input_shape, ", got ",
                 grad.shape(), " and ", indices.dtype(), " ", indices.shape(), "; pass the indices of max_pool2d()");
  const Tensor places = as_images(indices);
  const bool last = is_channels_last(places);
  Tensor images = grad;
  if (last ? !is_channels_last(grad) && !(grad.is_contiguous() && grad.size(1) == 1) : !grad.is_contiguous()) {
    images = empty_images(grad.shape(), grad, last);
    images.copy_(grad);
  }
  Tensor out = empty_images(input_shape, grad, last);
  kernels::max_pool2d_grad(grad.device(), images, places, out);
  return out;
}

}  // namespace lockstep
