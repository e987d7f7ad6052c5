#pragma once
// Activations, dropout layers, Flatten, and losses as layers. Only PReLU has parameters. Elementwise layers take any
// shape and give the same shape; the formulas below are per element.
#include "nn/module.h"

namespace lockstep::nn {

/// max(x, 0).
struct ReLU : Layer<ReLU> {
  Variable forward(const Variable& x) { return relu(x); }
};
/// x sigmoid(x), also called swish (Elfwing et al., 2017).
struct SiLU : Layer<SiLU> {
  Variable forward(const Variable& x) { return silu(x); }
};
/// tanh(x).
struct Tanh : Layer<Tanh> {
  Variable forward(const Variable& x) { return tanh(x); }
};
/// 1 / (1 + exp(-x)).
struct Sigmoid : Layer<Sigmoid> {
  Variable forward(const Variable& x) { return sigmoid(x); }
};
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

/// x times the normal distribution function at x (Hendrycks and Gimpel, 2016), exact (erf) or by the tanh formula.
struct GELU : Layer<GELU> {
  /// approximate: erf for the exact function, tanh for the approximation that GPT-2 uses.
  struct Options {
    Gelu approximate = Gelu::erf;
  };
  GELU() : GELU(Options{}) {}
  explicit GELU(const Options& o) : approximate(o.approximate) {}
  Variable forward(const Variable& x) { return gelu(x, approximate); }
  std::string options() const override { return approximate == Gelu::erf ? "" : "tanh"; }
  Gelu approximate;
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
  explicit PReLU(const Options& o);
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
  explicit RReLU(const Options& options);
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

/// exp(x) / sum of exp(x) along dim.
struct Softmax : Layer<Softmax> {
  /// dim: the dim along which the outputs add up to 1.
  struct Options {
    int64_t dim = -1;
  };
  Softmax() : Softmax(Options{}) {}
  explicit Softmax(const Options& o) : dim(o.dim) {}
  Variable forward(const Variable& x) { return softmax(x, dim); }
  int64_t dim;
};
/// log(softmax(x)) along dim.
struct LogSoftmax : Layer<LogSoftmax> {
  /// The options of Softmax.
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
  Variable forward(const Variable& x);
  int64_t dim;
};

/// In training zeroes each element with probability p and scales the others by 1 / (1 - p) (Srivastava et al., 2014).
struct Dropout : Layer<Dropout> {
  /// p: probability that an element is zeroed.
  struct Options {
    double p = 0.5;
  };
  Dropout() : Dropout(Options{}) {}
  /// Error unless p is in [0, 1].
  explicit Dropout(const Options& o) : p(o.p) {
    LOCKSTEP_CHECK(p >= 0 && p <= 1, "[Dropout] expected p in [0, 1], got ", p);
  }
  Variable forward(const Variable& x) { return dropout(x, p, is_training(), part); }
  /// True if a call returns x unchanged and no hook needs the call.
  bool is_identity() const { return !has_hooks() && (p == 0 || !is_training()); }
  /// residual + dropout(x), fused into one pass unless the layer has hooks.
  Variable apply_and_add(const Variable& residual, const Variable& x) {
    return has_hooks() ? add(residual, (*this)(x)) : add_dropout(residual, x, p, is_training(), part);
  }
  std::string options() const override { return str("p ", p); }
  void sharded(const PartOf& of) override { part = of; }
  double p;
  PartOf part;  ///< set if x is a part of a sharded tensor: the mask is a part of the whole tensor's mask
};

/// Base of Dropout1d/2d/3d: in training zeroes each channel with probability p and scales the others by 1 / (1 - p).
/// Input (N, C, ...) or (C, ...), with 1, 2 or 3 spatial dims.
struct ChannelDropout : Layer<ChannelDropout> {
  /// The options of Dropout.
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

/// Merges dims `first` to `last` (inclusive) into one.
struct Flatten : Layer<Flatten> {
  /// The first and last dim to merge; negative ones count from the end.
  struct Options {
    int64_t first = 1, last = -1;
  };
  Flatten() : Flatten(Options{}) {}
  explicit Flatten(const Options& options) : o(options) {}
  /// Returns a view of x if the strides of x allow it, else a copy.
  Variable forward(const Variable& x) { return x.flatten(o.first, o.last); }
  Options o;
};

// Losses as layers. The functions in autograd/ops.h compute the same.
/// Mean of (x - target)^2.
struct MSELoss : Layer<MSELoss> {
  /// Returns a scalar. x and target must have the same shape.
  Variable forward(const Variable& x, const Variable& target) { return mse_loss(x, target); }
};
/// Mean of |x - target|.
struct L1Loss : Layer<L1Loss> {
  Variable forward(const Variable& x, const Variable& target) { return l1_loss(x, target); }
};
/// Mean binary cross entropy of sigmoid(x) with targets in [0, 1].
struct BCEWithLogitsLoss : Layer<BCEWithLogitsLoss> {
  Variable forward(const Variable& x, const Variable& target) { return bce_with_logits(x, target); }
};
/// Cross entropy of logits (N, C, ...) with targets: class indices i64 (N, ...), or probabilities (N, C, ...).
struct CrossEntropyLoss : Layer<CrossEntropyLoss> {
  explicit CrossEntropyLoss(CrossEntropyOptions options = CrossEntropyOptions()) : o(std::move(options)) {}
  /// The loss: a scalar, or one number per target if o.reduction is none.
  Variable forward(const Variable& logits, const Variable& target) { return cross_entropy(logits, target, o); }
  CrossEntropyOptions o;
};

}  // namespace lockstep::nn
