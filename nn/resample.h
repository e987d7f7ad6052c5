#pragma once
// Layers around autograd/resample.h: Upsample, Fold and Unfold.
#include "autograd/resample.h"
#include "nn/module.h"

namespace lockstep::nn {

/// Resizes x (N, C, ...) with 1 to 3 spatial dims by interpolation.
struct Upsample : Layer<Upsample> {
  using Options = InterpolateOptions;
  explicit Upsample(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return interpolate(x, o); }
  Options o;
};

/// Extracts sliding windows: x (N, C, H, W) gives (N, C * kernel size, number of windows).
struct Unfold : Layer<Unfold> {
  using Options = UnfoldOptions;
  explicit Unfold(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return unfold(x, o); }
  std::string options() const override { return str("kernel ", o.kernel, ", stride ", o.stride); }
  Options o;
};

/// Inverse of Unfold, with overlaps added: x (N, C * kernel size, number of windows) gives (N, C, size...).
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
