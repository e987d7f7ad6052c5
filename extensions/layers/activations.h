#pragma once
// Activations that few models need, and the dropout of networks with SELU. Elementwise layers take any shape and give
// the same shape; the formulas below are per element.
#include "nn/activation.h"

namespace lockstep::nn {

/// x - tanh(x).
struct Tanhshrink : Layer<Tanhshrink> {
  Variable forward(const Variable& x) { return x - tanh(x); }
};

/// x / (1 + |x|).
struct Softsign : Layer<Softsign> {
  Variable forward(const Variable& x) { return x / (abs(x) + 1.0); }
};

/// A scaled ELU whose outputs tend to mean 0 and standard deviation 1 (Klambauer et al., 2017).
struct SELU : Layer<SELU> {
  Variable forward(const Variable& x) {
    return elu(x, 1.6732632423543772848170429916717) * 1.0507009873554804934193349852946;
  }
};

/// alpha elu(x / alpha), alpha > 0: smooth at 0 (Barron, 2017).
struct CELU : Layer<CELU> {
  /// The options of ELU.
  using Options = ELU::Options;
  /// Error unless alpha > 0.
  explicit CELU(const Options& o = {});
  Variable forward(const Variable& x) { return elu(x / alpha) * alpha; }
  double alpha;
};

/// x clamped to [low, high].
struct Hardtanh : Layer<Hardtanh> {
  /// Bounds of the output.
  struct Options {
    double low = -1, high = 1;
  };
  Hardtanh() : Hardtanh(Options{}) {}
  /// Error unless low <= high.
  explicit Hardtanh(const Options& options);
  Variable forward(const Variable& x) { return clamp(x, o.low, o.high); }
  Options o;
};

/// x where |x| > lambda >= 0, else 0.
struct Hardshrink : Layer<Hardshrink> {
  /// lambda: half the width of the zone that becomes 0.
  struct Options {
    double lambda = 0.5;
  };
  Hardshrink() : Hardshrink(Options{}) {}
  /// Error unless lambda >= 0.
  explicit Hardshrink(const Options& o);
  Variable forward(const Variable& x);
  double lambda;
};

/// x - lambda where x > lambda, x + lambda where x < -lambda, else 0.
struct Softshrink : Layer<Softshrink> {
  /// The options of Hardshrink.
  using Options = Hardshrink::Options;
  /// Error unless lambda >= 0.
  explicit Softshrink(const Options& o = {});
  Variable forward(const Variable& x);
  double lambda;
};

/// x where x > threshold, else value.
struct Threshold : Layer<Threshold> {
  /// Inputs up to `threshold` become `value`.
  struct Options {
    double threshold, value;
  };
  /// Error if the threshold is NaN.
  explicit Threshold(const Options& options);
  Variable forward(const Variable& x);
  Options o;
};

/// softmax(-x) along dim.
struct Softmin : Layer<Softmin> {
  /// The options of Softmax.
  using Options = Softmax::Options;
  explicit Softmin(const Options& o = {}) : dim(o.dim) {}
  Variable forward(const Variable& x) { return softmax(-x, dim); }
  int64_t dim;
};

/// Softmax over the channels of (N, C, H, W) or (C, H, W).
struct Softmax2d : Layer<Softmax2d> {
  /// Error unless x has 3 or 4 dims.
  Variable forward(const Variable& x);
};

/// Dropout for networks with SELU: dropped elements take SELU's lowest value, and an affine map keeps mean and standard
/// deviation (Klambauer et al., 2017).
struct AlphaDropout : Layer<AlphaDropout> {
  /// The options of Dropout.
  using Options = Dropout::Options;
  /// Error unless p is in [0, 1].
  explicit AlphaDropout(const Options& o = {});
  Variable forward(const Variable& x);
  std::string options() const override { return str("p ", p); }
  double p;
  bool channels = false;  ///< true: drop whole channels; false: single elements
};

/// AlphaDropout of whole channels. Input (N, C, ...).
struct FeatureAlphaDropout : AlphaDropout {
  /// Error unless p is in [0, 1].
  explicit FeatureAlphaDropout(const Options& o = {}) : AlphaDropout(o) { channels = true; }
};

}  // namespace lockstep::nn
