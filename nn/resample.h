#pragma once
// Layers around autograd/resample.h: Upsample, Fold and Unfold.
#include "autograd/resample.h"
#include "nn/module.h"

namespace lockstep::nn {

/// x (N, C, ...) with 1 to 3 dims behind C.
struct Upsample : Layer<Upsample> {
  using Options = InterpolateOptions;
  explicit Upsample(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return interpolate(x, o); }
  Options o;
};

/// x (N, C, H, W): (N, C * kernel, windows)
struct Unfold : Layer<Unfold> {
  using Options = UnfoldOptions;
  explicit Unfold(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return unfold(x, o); }
  std::string options() const override { return str("kernel ", o.kernel, ", stride ", o.stride); }
  Options o;
};

/// x (N, C * kernel, windows): (N, C, size)
struct Fold : Layer<Fold> {
  struct Options {
    Dims size, kernel;
    Dims dilation{1, 1}, padding{0, 0}, stride{1, 1};
  };
  explicit Fold(const Options& options) : o(options) {}
  Variable forward(const Variable& x) {
    return fold(x, o.size, {.kernel = o.kernel, .dilation = o.dilation, .padding = o.padding, .stride = o.stride});
  }
  std::string options() const override { return str("size ", o.size, ", kernel ", o.kernel, ", stride ", o.stride); }
  Options o;
};

}  // namespace lockstep::nn
