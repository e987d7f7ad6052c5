#include "nn/conv.h"

#include <cmath>

#include "nn/init.h"

namespace lockstep::nn {

namespace {

void check_channels(const char* layer, int64_t in, int64_t out, int64_t groups) {
  LOCKSTEP_CHECK(in > 0 && out > 0, "[", layer, "] expected channels > 0, got in ", in, " and out ", out);
  LOCKSTEP_CHECK(groups > 0 && in % groups == 0 && out % groups == 0, "[", layer, "] expected groups to divide in ", in,
                 " and out ", out, ", got ", groups);
}

/// PyTorch's initialisation of a convolution's weight and bias.
void init_conv(const Variable& weight, const Variable& bias) {
  init::kaiming_uniform(weight, std::sqrt(5.0));
  const double bound = 1 / std::sqrt(double(init::fan(weight.shape()).in));
  if (bias.defined()) init::uniform(bias, -bound, bound);
}

template <class Size> ConvArgs args_of(const Size& stride, const Size& padding, const Size& dilation, int64_t groups) {
  return {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups};
}

std::string conv_text(int64_t in, int64_t out, const Dims& kernel, const ConvArgs& args) {
  return str("in ", in, ", out ", out, ", kernel ", kernel, ", stride ", args.stride, ", padding ", args.padding);
}

}  // namespace

Conv2d::Conv2d(const Options& o) : args(args_of(o.stride, o.padding, o.dilation, o.groups)) {
  check_channels("Conv2d", o.in, o.out, o.groups);
  weight = parameter({o.out, o.in / o.groups, o.kernel.height, o.kernel.width});
  if (o.bias) bias = parameter({o.out});
  init_conv(weight, bias);
}
std::string Conv2d::options() const {
  return conv_text(weight.size(1) * args.groups, weight.size(0), {weight.size(2), weight.size(3)}, args);
}

Conv1d::Conv1d(const Options& options) : o(options) {
  check_channels("Conv1d", o.in, o.out, o.groups);
  weight = parameter({o.out, o.in / o.groups, o.kernel});
  if (o.bias) bias = parameter({o.out});
  init_conv(weight, bias);
}
std::string Conv1d::options() const {
  return str("in ", o.in, ", out ", o.out, ", kernel ", o.kernel, ", stride ", o.stride, ", padding ", o.padding);
}

ConvTranspose2d::ConvTranspose2d(const Options& o)
    : args(args_of(o.stride, o.padding, o.dilation, o.groups)), output_padding(o.output_padding) {
  check_channels("ConvTranspose2d", o.in, o.out, o.groups);
  weight = parameter({o.in, o.out / o.groups, o.kernel.height, o.kernel.width});
  if (o.bias) bias = parameter({o.out});
  init_conv(weight, bias);
}

Conv3d::Conv3d(const Options& o) : args(args_of(o.stride, o.padding, o.dilation, o.groups)) {
  check_channels("Conv3d", o.in, o.out, o.groups);
  weight = parameter({o.out, o.in / o.groups, o.kernel.depth, o.kernel.height, o.kernel.width});
  if (o.bias) bias = parameter({o.out});
  init_conv(weight, bias);
}
std::string Conv3d::options() const {
  return conv_text(weight.size(1) * args.groups, weight.size(0), {weight.size(2), weight.size(3), weight.size(4)},
                   args);
}

ConvTranspose1d::ConvTranspose1d(const Options& options) : o(options) {
  check_channels("ConvTranspose1d", o.in, o.out, o.groups);
  weight = parameter({o.in, o.out / o.groups, o.kernel});
  if (o.bias) bias = parameter({o.out});
  init_conv(weight, bias);
}
std::string ConvTranspose1d::options() const {
  return str("in ", o.in, ", out ", o.out, ", kernel ", o.kernel, ", stride ", o.stride, ", padding ", o.padding);
}

ConvTranspose3d::ConvTranspose3d(const Options& o)
    : args(args_of(o.stride, o.padding, o.dilation, o.groups)), output_padding(o.output_padding) {
  check_channels("ConvTranspose3d", o.in, o.out, o.groups);
  weight = parameter({o.in, o.out / o.groups, o.kernel.depth, o.kernel.height, o.kernel.width});
  if (o.bias) bias = parameter({o.out});
  init_conv(weight, bias);
}
std::string ConvTranspose3d::options() const {
  return conv_text(weight.size(0), weight.size(1) * args.groups, {weight.size(2), weight.size(3), weight.size(4)},
                   args);
}

MaxPool2d::MaxPool2d(const Options& o)
    : args{.kernel = o.kernel,
           .stride = o.stride.value_or(o.kernel),
           .padding = o.padding,
           .dilation = o.dilation,
           .ceil_mode = o.ceil_mode} {}

AvgPool2d::AvgPool2d(const Options& o)
    : args{.kernel = o.kernel,
           .stride = o.stride.value_or(o.kernel),
           .padding = o.padding,
           .ceil_mode = o.ceil_mode,
           .count_include_pad = o.count_include_pad} {}

}  // namespace lockstep::nn
