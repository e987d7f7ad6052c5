#pragma once
// Activations, Dropout and its kin, Flatten, and losses as layers. Only PReLU has parameters.
#include "nn/module.h"

namespace lockstep::nn {

struct ReLU : Layer<ReLU> {
  Variable forward(const Variable& x) { return relu(x); }
};
struct SiLU : Layer<SiLU> {
  Variable forward(const Variable& x) { return silu(x); }
};
struct Tanh : Layer<Tanh> {
  Variable forward(const Variable& x) { return tanh(x); }
};
struct Sigmoid : Layer<Sigmoid> {
  Variable forward(const Variable& x) { return sigmoid(x); }
};
struct Mish : Layer<Mish> {
  Variable forward(const Variable& x) { return mish(x); }
};
struct Hardswish : Layer<Hardswish> {
  Variable forward(const Variable& x) { return hardswish(x); }
};
struct Hardsigmoid : Layer<Hardsigmoid> {
  Variable forward(const Variable& x) { return hardsigmoid(x); }
};
struct LogSigmoid : Layer<LogSigmoid> {
  Variable forward(const Variable& x) { return log_sigmoid(x); }
};
struct ReLU6 : Layer<ReLU6> {
  Variable forward(const Variable& x) { return clamp(x, 0, 6); }
};
struct Tanhshrink : Layer<Tanhshrink> {
  Variable forward(const Variable& x) { return x - tanh(x); }
};
struct Softsign : Layer<Softsign> {
  Variable forward(const Variable& x) { return x / (abs(x) + 1.0); }
};
/// Keeps mean 0 and deviation 1 (Klambauer et al., 2017).
struct SELU : Layer<SELU> {
  Variable forward(const Variable& x) {
    return elu(x, 1.6732632423543772848170429916717) * 1.0507009873554804934193349852946;
  }
};

struct GELU : Layer<GELU> {
  struct Options {
    Gelu approximate = Gelu::erf;
  };
  GELU() : GELU(Options{}) {}
  explicit GELU(const Options& o) : approximate(o.approximate) {}
  Variable forward(const Variable& x) { return gelu(x, approximate); }
  std::string options() const override { return approximate == Gelu::erf ? "" : "tanh"; }
  Gelu approximate;
};

struct LeakyReLU : Layer<LeakyReLU> {
  struct Options {
    double slope = 0.01;
  };
  LeakyReLU() : LeakyReLU(Options{}) {}
  explicit LeakyReLU(const Options& o) : slope(o.slope) {}
  Variable forward(const Variable& x) { return leaky_relu(x, slope); }
  double slope;
};

struct ELU : Layer<ELU> {
  struct Options {
    double alpha = 1;
  };
  ELU() : ELU(Options{}) {}
  explicit ELU(const Options& o) : alpha(o.alpha) {}
  Variable forward(const Variable& x) { return elu(x, alpha); }
  double alpha;
};

/// alpha elu(x / alpha), alpha > 0: smooth at 0 (Barron, 2017).
struct CELU : Layer<CELU> {
  using Options = ELU::Options;
  explicit CELU(const Options& o = {});
  Variable forward(const Variable& x) { return elu(x / alpha) * alpha; }
  double alpha;
};

/// x, or weight x where x <= 0: one weight, or one for each channel in dim 1. They start at 0.25 (He et al., 2015).
struct PReLU : Layer<PReLU> {
  struct Options {
    int64_t channels = 1;
    double init = 0.25;
  };
  PReLU() : PReLU(Options{}) {}
  explicit PReLU(const Options& o);
  Variable forward(const Variable& x);
  void fields(Fields& f) override { f("weight", weight); }
  Variable weight;
};

/// x, or slope x where x <= 0: a slope from [lower, upper) for each element while training, else the one between them.
struct RReLU : Layer<RReLU> {
  struct Options {
    double lower = 1.0 / 8, upper = 1.0 / 3;
  };
  RReLU() : RReLU(Options{}) {}
  explicit RReLU(const Options& options);
  Variable forward(const Variable& x);
  Options o;
};

struct Hardtanh : Layer<Hardtanh> {
  struct Options {
    double low = -1, high = 1;
  };
  Hardtanh() : Hardtanh(Options{}) {}
  explicit Hardtanh(const Options& options);
  Variable forward(const Variable& x) { return clamp(x, o.low, o.high); }
  Options o;
};

/// x where |x| > lambda >= 0, else 0.
struct Hardshrink : Layer<Hardshrink> {
  struct Options {
    double lambda = 0.5;
  };
  Hardshrink() : Hardshrink(Options{}) {}
  explicit Hardshrink(const Options& o);
  Variable forward(const Variable& x);
  double lambda;
};

/// The same, nearer to 0 by lambda.
struct Softshrink : Layer<Softshrink> {
  using Options = Hardshrink::Options;
  explicit Softshrink(const Options& o = {});
  Variable forward(const Variable& x);
  double lambda;
};

/// x where x > threshold, else value.
struct Threshold : Layer<Threshold> {
  struct Options {
    double threshold, value;
  };
  explicit Threshold(const Options& options);
  Variable forward(const Variable& x);
  Options o;
};

struct Softplus : Layer<Softplus> {
  struct Options {
    double beta = 1, threshold = 20;
  };
  Softplus() : Softplus(Options{}) {}
  explicit Softplus(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return softplus(x, o.beta, o.threshold); }
  Options o;
};

struct Softmax : Layer<Softmax> {
  struct Options {
    int64_t dim = -1;
  };
  Softmax() : Softmax(Options{}) {}
  explicit Softmax(const Options& o) : dim(o.dim) {}
  Variable forward(const Variable& x) { return softmax(x, dim); }
  int64_t dim;
};
struct LogSoftmax : Layer<LogSoftmax> {
  using Options = Softmax::Options;
  explicit LogSoftmax(const Options& o = {}) : dim(o.dim) {}
  Variable forward(const Variable& x) { return log_softmax(x, dim); }
  int64_t dim;
};
struct Softmin : Layer<Softmin> {
  using Options = Softmax::Options;
  explicit Softmin(const Options& o = {}) : dim(o.dim) {}
  Variable forward(const Variable& x) { return softmax(-x, dim); }
  int64_t dim;
};
/// a sigmoid(b) of the halves (a, b) of dim (Dauphin et al., 2017).
struct GLU : Layer<GLU> {
  using Options = Softmax::Options;
  explicit GLU(const Options& o = {}) : dim(o.dim) {}
  Variable forward(const Variable& x);
  int64_t dim;
};

/// Over the channels of (N, C, H, W) or (C, H, W).
struct Softmax2d : Layer<Softmax2d> {
  Variable forward(const Variable& x);
};

/// Zeroes elements with probability p while training, and scales the others by 1 / (1 - p).
struct Dropout : Layer<Dropout> {
  struct Options {
    double p = 0.5;
  };
  Dropout() : Dropout(Options{}) {}
  explicit Dropout(const Options& o) : p(o.p) {
    LOCKSTEP_CHECK(p >= 0 && p <= 1, "[Dropout] expected p in [0, 1], got ", p);
  }
  Variable forward(const Variable& x) { return dropout(x, p, is_training(), part); }
  /// Its calls give back x, and nobody notices them.
  bool is_identity() const { return !has_hooks() && (p == 0 || !is_training()); }
  /// residual + what it makes of x: in one pass, unless somebody has hooked into its calls.
  Variable added(const Variable& residual, const Variable& x) {
    return has_hooks() ? add(residual, (*this)(x)) : add_dropout(residual, x, p, is_training(), part);
  }
  std::string options() const override { return str("p ", p); }
  void sliced(const PartOf& of) override { part = of; }
  double p;
  PartOf part;  ///< when x is a part of a tensor
};

/// Whole channels, all with probability p: x (N, C, ...), or (C, ...), with as many dims behind C as the name says.
struct ChannelDropout : Layer<ChannelDropout> {
  using Options = Dropout::Options;
  Variable forward(const Variable& x);
  std::string options() const override { return str("p ", p); }
  double p;
  Dims allowed_ranks;  ///< the last one is with a batch

 protected:
  ChannelDropout(const char* kind, const Options& o, const Dims& ranks);
};
struct Dropout1d : ChannelDropout {
  explicit Dropout1d(const Options& o = {}) : ChannelDropout("Dropout1d", o, {2, 3}) {}
};
/// x (N, C, H, W)
struct Dropout2d : ChannelDropout {
  explicit Dropout2d(const Options& o = {}) : ChannelDropout("Dropout2d", o, {4}) {}
};
struct Dropout3d : ChannelDropout {
  explicit Dropout3d(const Options& o = {}) : ChannelDropout("Dropout3d", o, {4, 5}) {}
};

/// Behind SELU: what is dropped becomes SELU's lowest value, and mean and deviation stay (Klambauer et al., 2017).
struct AlphaDropout : Layer<AlphaDropout> {
  using Options = Dropout::Options;
  explicit AlphaDropout(const Options& o = {});
  Variable forward(const Variable& x);
  std::string options() const override { return str("p ", p); }
  double p;
  bool channels = false;  ///< whole ones
};
/// The same with whole channels: x (N, C, ...)
struct FeatureAlphaDropout : AlphaDropout {
  explicit FeatureAlphaDropout(const Options& o = {}) : AlphaDropout(o) { channels = true; }
};

struct Flatten : Layer<Flatten> {
  struct Options {
    int64_t first = 1, last = -1;
  };
  Flatten() : Flatten(Options{}) {}
  explicit Flatten(const Options& options) : o(options) {}
  Variable forward(const Variable& x) { return x.flatten(o.first, o.last); }
  Options o;
};

// Losses as layers, for code written that way; the functions in autograd/ops.h are the same.
struct MSELoss : Layer<MSELoss> {
  Variable forward(const Variable& x, const Variable& target) { return mse_loss(x, target); }
};
struct L1Loss : Layer<L1Loss> {
  Variable forward(const Variable& x, const Variable& target) { return l1_loss(x, target); }
};
struct BCEWithLogitsLoss : Layer<BCEWithLogitsLoss> {
  Variable forward(const Variable& x, const Variable& target) { return bce_with_logits(x, target); }
};
struct CrossEntropyLoss : Layer<CrossEntropyLoss> {
  explicit CrossEntropyLoss(CrossEntropyOptions options = CrossEntropyOptions()) : o(std::move(options)) {}
  Variable forward(const Variable& logits, const Variable& target) { return cross_entropy(logits, target, o); }
  CrossEntropyOptions o;
};

}  // namespace lockstep::nn
