#pragma once
// Convolutions, and pooling of images; other pooling is in nn/pool.h. Images are (N, C, H, W), signals (N, C, L),
// volumes (N, C, D, H, W).
#include <optional>

#include "autograd/conv_volumes.h"
#include "autograd/pools.h"
#include "nn/module.h"

namespace lockstep::nn {

/// One size for both dims, or (height, width).
struct Pair {
  Pair(int64_t both) : height(both), width(both) {}  // NOLINT: implicit on purpose
  Pair(int64_t h, int64_t w) : height(h), width(w) {}
  int64_t height, width;
  operator Dims() const { return {height, width}; }  // NOLINT
};

/// One size for all dims, or (depth, height, width).
struct Triple {
  Triple(int64_t all) : depth(all), height(all), width(all) {}  // NOLINT: implicit on purpose
  Triple(int64_t d, int64_t h, int64_t w) : depth(d), height(h), width(w) {}
  int64_t depth, height, width;
  operator Dims() const { return {depth, height, width}; }  // NOLINT
};

/// weight (out, in / groups, height, width), PyTorch's initialisation.
struct Conv2d : Layer<Conv2d> {
  struct Options {
    int64_t in, out;
    Pair kernel = 3, stride = 1, padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit Conv2d(const Options& options);
  Variable forward(const Variable& x) { return conv2d(x, weight, bias, args); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Variable weight, bias;
  ConvArgs args;
};

struct Conv1d : Layer<Conv1d> {
  struct Options {
    int64_t in, out, kernel = 3, stride = 1, padding = 0, dilation = 1, groups = 1;
    bool bias = true;
  };
  explicit Conv1d(const Options& options);
  Variable forward(const Variable& x) { return conv1d(x, weight, bias, o.stride, o.padding, o.dilation, o.groups); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Variable weight, bias;
  Options o;
};

/// The gradient of a convolution as a layer: weight (in, out / groups, height, width).
struct ConvTranspose2d : Layer<ConvTranspose2d> {
  struct Options {
    int64_t in, out;
    Pair kernel = 3, stride = 1, padding = 0, output_padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit ConvTranspose2d(const Options& options);
  Variable forward(const Variable& x) { return conv_transpose2d(x, weight, bias, args, output_padding); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }

  Variable weight, bias;
  ConvArgs args;
  Dims output_padding;
};

/// weight (out, in / groups, depth, height, width)
struct Conv3d : Layer<Conv3d> {
  struct Options {
    int64_t in, out;
    Triple kernel = 3, stride = 1, padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit Conv3d(const Options& options);
  Variable forward(const Variable& x) { return conv3d(x, weight, bias, args); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Variable weight, bias;
  ConvArgs args;
};

/// weight (in, out / groups, kernel)
struct ConvTranspose1d : Layer<ConvTranspose1d> {
  struct Options {
    int64_t in, out, kernel = 3, stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
    bool bias = true;
  };
  explicit ConvTranspose1d(const Options& options);
  Variable forward(const Variable& x) {
    return conv_transpose1d(x, weight, bias, o.stride, o.padding, o.output_padding, o.dilation, o.groups);
  }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Variable weight, bias;
  Options o;
};

/// weight (in, out / groups, depth, height, width)
struct ConvTranspose3d : Layer<ConvTranspose3d> {
  struct Options {
    int64_t in, out;
    Triple kernel = 3, stride = 1, padding = 0, output_padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
  };
  explicit ConvTranspose3d(const Options& options);
  Variable forward(const Variable& x) { return conv_transpose3d(x, weight, bias, args, output_padding); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override;

  Variable weight, bias;
  ConvArgs args;
  Dims output_padding;
};

struct MaxPool2d : Layer<MaxPool2d> {
  struct Options {
    Pair kernel = 2;
    std::optional<Pair> stride;
    Pair padding = 0, dilation = 1;
    bool ceil_mode = false;
  };
  MaxPool2d() : MaxPool2d(Options{}) {}
  explicit MaxPool2d(const Options& o);
  Variable forward(const Variable& x) { return max_pool2d(x, args); }
  VariableIndices with_indices(const Variable& x) { return max_pool_indices(x, args); }  ///< for MaxUnpool2d
  std::string options() const override { return str("kernel ", args.kernel, ", stride ", args.stride); }
  PoolArgs args;
};

struct AvgPool2d : Layer<AvgPool2d> {
  struct Options {
    Pair kernel = 2;
    std::optional<Pair> stride;
    Pair padding = 0;
    bool ceil_mode = false, count_include_pad = true;
  };
  AvgPool2d() : AvgPool2d(Options{}) {}
  explicit AvgPool2d(const Options& o);
  Variable forward(const Variable& x) { return avg_pool2d(x, args); }
  std::string options() const override { return str("kernel ", args.kernel, ", stride ", args.stride); }
  PoolArgs args;
};

struct AdaptiveAvgPool2d : Layer<AdaptiveAvgPool2d> {
  struct Options {
    Pair output = 1;
  };
  AdaptiveAvgPool2d() : AdaptiveAvgPool2d(Options{}) {}
  explicit AdaptiveAvgPool2d(const Options& o) : output(o.output) {}
  Variable forward(const Variable& x) { return adaptive_avg_pool2d(x, output.height, output.width); }
  std::string options() const override { return str("output ", Dims(output)); }
  Pair output;
};

}  // namespace lockstep::nn
