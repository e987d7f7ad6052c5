#pragma once
// Pooling of images (N, C, H, W). In all Options the stride defaults to the kernel size.
#include <optional>

#include "nn/conv.h"

namespace lockstep::nn {

namespace pools {
/// Converts options of a pooling layer to the arguments of the pooling functions.
template <class Size>
PoolArgs args_of(const Size& kernel, const std::optional<Size>& stride, const Size& padding, const Size& dilation,
                 bool ceil_mode) {
  return {.kernel = dims_of(kernel),
          .stride = dims_of(stride.value_or(kernel)),
          .padding = dims_of(padding),
          .dilation = dims_of(dilation),
          .ceil_mode = ceil_mode};
}
/// Returns the text of a pooling layer's options().
inline std::string text_of(const PoolArgs& args) { return str("kernel ", args.kernel, ", stride ", args.stride); }
}  // namespace pools

/// Maximum of each window.
struct MaxPool2d : Layer<MaxPool2d> {
  struct Options {
    Pair kernel = 2;
    std::optional<Pair> stride = {};
    Pair padding = 0, dilation = 1;
    bool ceil_mode = false;
  };
  MaxPool2d() : MaxPool2d(Options()) {}
  explicit MaxPool2d(const Options& o) : args(pools::args_of(o.kernel, o.stride, o.padding, o.dilation, o.ceil_mode)) {}
  Variable forward(const Variable& x) { return max_pool2d(x, args); }
  /// Returns the positions of the maxima, too.
  VariableIndices with_indices(const Variable& x) { return max_pool2d_indices(x, args); }
  std::string options() const override { return pools::text_of(args); }
  PoolArgs args;
};

/// Mean of each window; with count_include_pad, padding counts as zeros.
struct AvgPool2d : Layer<AvgPool2d> {
  struct Options {
    Pair kernel = 2;
    std::optional<Pair> stride = {};
    Pair padding = 0;
    bool ceil_mode = false, count_include_pad = true;
  };
  AvgPool2d() : AvgPool2d(Options()) {}
  explicit AvgPool2d(const Options& o) : args(pools::args_of(o.kernel, o.stride, o.padding, Pair(1), o.ceil_mode)) {
    args.count_include_pad = o.count_include_pad;
  }
  Variable forward(const Variable& x) { return avg_pool2d(x, args); }
  std::string options() const override { return pools::text_of(args); }
  PoolArgs args;
};

/// Mean of each of `output` windows (-1: as many as the input has pixels). The windows have nearly equal sizes and
/// together cover the input.
struct AdaptiveAvgPool2d : Layer<AdaptiveAvgPool2d> {
  struct Options {
    Pair output = 1;
  };
  AdaptiveAvgPool2d() : AdaptiveAvgPool2d(Options()) {}
  explicit AdaptiveAvgPool2d(const Options& o) : output(o.output) {}
  Variable forward(const Variable& x) { return adaptive_avg_pool2d(x, output[0], output[1]); }
  std::string options() const override { return str("output ", output); }
  Dims output;
};

}  // namespace lockstep::nn
