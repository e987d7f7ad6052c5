#pragma once
// Activations that few models need, dropout of whole channels, and the dropout of networks with SELU. Only PReLU has
// parameters. Elementwise layers take any shape and give the same shape; the formulas below are per element.
#include <cmath>

#include "nn/activation.h"

namespace lockstep::nn {

/// x tanh(log(1 + exp(x))) (Misra, 2019).
struct Mish : Layer<Mish> {
  Variable forward(const Variable& x) { return mish(x); }
};
/// x clamp(x + 3, 0, 6) / 6 (Howard et al., 2019).
struct Hardswish : Layer<Hardswish> {
  Variable forward(const Variable& x) { return hardswish(x); }
};
/// clamp(x + 3, 0, 6) / 6.
struct Hardsigmoid : Layer<Hardsigmoid> {
  Variable forward(const Variable& x) { return hardsigmoid(x); }
};
/// log(sigmoid(x)).
struct LogSigmoid : Layer<LogSigmoid> {
  Variable forward(const Variable& x) { return log_sigmoid(x); }
};
/// x clamped to [0, 6].
struct ReLU6 : Layer<ReLU6> {
  Variable forward(const Variable& x) { return clamp(x, 0, 6); }
};

/// x where x >= 0, else slope * x.
struct LeakyReLU : Layer<LeakyReLU> {
  /// slope: factor of negative inputs.
  struct Options {
    double slope = 0.01;
  };
  LeakyReLU() : LeakyReLU(Options{}) {}
  explicit LeakyReLU(const Options& o) : slope(o.slope) {}
  Variable forward(const Variable& x) { return leaky_relu(x, slope); }
  double slope;
};

/// x, or alpha (exp(x) - 1) where x < 0 (Clevert et al., 2015).
struct ELU : Layer<ELU> {
  /// alpha: the output tends to -alpha as x tends to -infinity.
  struct Options {
    double alpha = 1;
  };
  ELU() : ELU(Options{}) {}
  explicit ELU(const Options& o) : alpha(o.alpha) {}
  Variable forward(const Variable& x) { return elu(x, alpha); }
  double alpha;
};

/// x where x > 0, else weight * x. The weights are learned: a single one, or one per channel (dim 1) (He et al., 2015).
struct PReLU : Layer<PReLU> {
  /// channels: number of weights, 1 or the size of dim 1; init: their start value.
  struct Options {
    int64_t channels = 1;
    double init = 0.25;
  };
  PReLU() : PReLU(Options{}) {}
  /// Error unless channels > 0.
  explicit PReLU(const Options& o) {
    LOCKSTEP_CHECK(o.channels > 0, "[PReLU] expected channels > 0, got ", o.channels);
    weight = parameter({o.channels}, o.init);
  }
  /// Error unless channels is 1 or the size of dim 1.
  Variable forward(const Variable& x);
  void fields(Fields& f) override { f("weight", weight); }
  Variable weight;
};

/// x where x > 0, else slope * x. In training each element draws its slope from [lower, upper); in evaluation the slope
/// is (lower + upper) / 2.
struct RReLU : Layer<RReLU> {
  /// Bounds of the slopes.
  struct Options {
    double lower = 1.0 / 8, upper = 1.0 / 3;
  };
  RReLU() : RReLU(Options{}) {}
  /// Error unless lower and upper are finite and lower <= upper.
  explicit RReLU(const Options& options) : o(options) {
    LOCKSTEP_CHECK(std::isfinite(o.lower) && std::isfinite(o.upper) && o.lower <= o.upper,
                   "[RReLU] expected finite lower <= upper, got ", o.lower, " and ", o.upper);
  }
  Variable forward(const Variable& x);
  Options o;
};

/// log(1 + exp(beta x)) / beta; x itself where beta x > threshold.
struct Softplus : Layer<Softplus> {
  /// beta: sharpness. threshold: the output is x where beta * x is greater.
  struct Options {
    double beta = 1, threshold = 20;
  };
  Softplus() : Softplus(Options{}) {}
  explicit Softplus(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return softplus(x, o.beta, o.threshold); }
  Options o;
};

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
  using Options = ELU::Options;
  /// Error unless alpha > 0.
  explicit CELU(const Options& o = {}) : alpha(o.alpha) {
    LOCKSTEP_CHECK(alpha > 0, "[CELU] expected alpha > 0, got ", alpha);
  }
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
  explicit Hardtanh(const Options& options) : o(options) {
    LOCKSTEP_CHECK(o.low <= o.high, "[Hardtanh] expected low <= high, got ", o.low, " and ", o.high);
  }
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
  explicit Threshold(const Options& options) : o(options) {
    LOCKSTEP_CHECK(!std::isnan(o.threshold), "[Threshold] expected a threshold other than NaN, got ", o.threshold);
  }
  Variable forward(const Variable& x);
  Options o;
};

/// log(softmax(x)) along dim.
struct LogSoftmax : Layer<LogSoftmax> {
  using Options = Softmax::Options;
  explicit LogSoftmax(const Options& o = {}) : dim(o.dim) {}
  Variable forward(const Variable& x) { return log_softmax(x, dim); }
  int64_t dim;
};
/// a sigmoid(b), where (a, b) are the halves of x along dim (Dauphin et al., 2017).
struct GLU : Layer<GLU> {
  /// The same type as Softmax's options; here `dim` is the dim that is halved.
  using Options = Softmax::Options;
  explicit GLU(const Options& o = {}) : dim(o.dim) {}
  /// Halves dim. Error if its size is odd.
  Variable forward(const Variable& x) {
    LOCKSTEP_CHECK(x.dim() > 0 && x.size(dim) % 2 == 0, "[GLU] expected an even size in dim ", dim, ", got ",
                   x.shape());
    const int64_t half = x.size(dim) / 2;
    return x.narrow(dim, 0, half) * sigmoid(x.narrow(dim, half, half));
  }
  int64_t dim;
};

/// softmax(-x) along dim.
struct Softmin : Layer<Softmin> {
  using Options = Softmax::Options;
  explicit Softmin(const Options& o = {}) : dim(o.dim) {}
  Variable forward(const Variable& x) { return softmax(-x, dim); }
  int64_t dim;
};

/// Softmax over the channels of (N, C, H, W) or (C, H, W).
struct Softmax2d : Layer<Softmax2d> {
  /// Error unless x has 3 or 4 dims.
  Variable forward(const Variable& x) {
    LOCKSTEP_CHECK(x.dim() == 3 || x.dim() == 4, "[Softmax2d] expected input (N, C, H, W) or (C, H, W), got ",
                   x.shape());
    return softmax(x, -3);
  }
};

/// Base of Dropout1d/2d/3d: in training zeroes each channel with probability p and scales the others by 1 / (1 - p).
/// Input (N, C, ...) or (C, ...), with 1, 2 or 3 spatial dims.
struct ChannelDropout : Layer<ChannelDropout> {
  using Options = Dropout::Options;
  /// Error if x has a number of dims that this kind of dropout does not take.
  Variable forward(const Variable& x);
  std::string options() const override { return str("p ", p); }
  double p;
  Dims allowed_ranks;  ///< accepted values of x.dim(); the last one includes the batch dim

 protected:
  ChannelDropout(const char* kind, const Options& o, const Dims& ranks);
};
/// ChannelDropout for inputs (N, C, L) or (C, L).
struct Dropout1d : ChannelDropout {
  /// Error unless p is in [0, 1].
  explicit Dropout1d(const Options& o = {}) : ChannelDropout("Dropout1d", o, {2, 3}) {}
};
/// ChannelDropout for inputs (N, C, H, W).
struct Dropout2d : ChannelDropout {
  /// Error unless p is in [0, 1].
  explicit Dropout2d(const Options& o = {}) : ChannelDropout("Dropout2d", o, {4}) {}
};
/// ChannelDropout for inputs (N, C, D, H, W) or (C, D, H, W).
struct Dropout3d : ChannelDropout {
  /// Error unless p is in [0, 1].
  explicit Dropout3d(const Options& o = {}) : ChannelDropout("Dropout3d", o, {4, 5}) {}
};

/// Dropout for networks with SELU: dropped elements take SELU's lowest value, and an affine map keeps mean and standard
/// deviation (Klambauer et al., 2017).
struct AlphaDropout : Layer<AlphaDropout> {
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
