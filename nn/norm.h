#pragma once
// Layer norm, RMS norm and batch norm. Weights start at 1, biases at 0. Other norms are in extensions/layers/norm.h.
#include <optional>

#include "nn/activation.h"

namespace lockstep::nn {

/// (x - mean) / sqrt(variance + eps) * weight + bias, over the trailing dims `shape` (Ba et al., 2016).
struct LayerNorm : Layer<LayerNorm> {
  struct Options {
    Shape shape;
    double eps = 1e-5;
    bool affine = true, bias = true;
  };
  /// Error for an empty shape.
  explicit LayerNorm(const Options& options);
  explicit LayerNorm(int64_t size) : LayerNorm(Options{.shape = {size}}) {}
  Variable forward(const Variable& x) { return layer_norm(x, shape, weight, bias, eps); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override { return str(shape, ", eps ", eps); }

  Shape shape;
  double eps;
  Variable weight, bias;
};

/// x / sqrt(mean(x^2) + eps) * weight over the last dim (Zhang and Sennrich, 2019). 16-bit inputs are rounded before
/// the product with the weight, as in Llama.
struct RMSNorm : Layer<RMSNorm> {
  struct Options {
    int64_t size;
    double eps = 1e-6;
  };
  explicit RMSNorm(const Options& options);
  Variable forward(const Variable& x) { return rms_norm(x, weight, eps); }
  void fields(Fields& f) override { f("weight", weight); }
  std::string options() const override { return str(weight.size(0), ", eps ", eps); }

  double eps;
  Variable weight;
};

/// LayerNorm or RMSNorm over the last dim, for models with an option that selects one of them.
struct Norm : Layer<Norm> {
  /// LayerNorm or RMSNorm.
  enum Kind { layer, rms };
  struct Options {
    Kind kind;
    int64_t size;
    double eps;
    bool bias = true;  ///< true: LayerNorm has a bias; RMSNorm never has one
  };
  explicit Norm(const Options& options);
  Variable forward(const Variable& x) {
    return o.kind == layer ? layer_norm(x, {o.size}, weight, bias, o.eps) : rms_norm(x, weight, o.eps);
  }
  /// Returns residual + dropout(x) and the norm of this sum, computed in one pass unless one of the layers has hooks.
  SumAndNorm of_sum(const Variable& residual, const Variable& x, Dropout& dropout);
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string kind() const override { return o.kind == layer ? "LayerNorm" : "RMSNorm"; }
  std::string options() const override { return str(Shape{o.size}, ", eps ", o.eps); }

  Options o;
  Variable weight, bias;
};

/// Base of BatchNorm and of InstanceNorm (extensions/layers/norm.h), which normalise each channel separately. Option
/// affine: a weight and a bias per channel. Option track: a running mean and a running variance per channel.
template <class Derived> struct ChannelNorm : Layer<Derived> {
  void fields(Fields& f) override {
    f("weight", weight)("bias", bias);
    f.statistic("running_mean", running_mean).statistic("running_var", running_var);
    f("num_batches_tracked", num_batches_tracked);
  }
  Variable weight, bias;
  Tensor running_mean, running_var, num_batches_tracked;

 protected:
  ChannelNorm(const char* kind, const auto& o) {
    LOCKSTEP_CHECK(o.channels > 0, "[", kind, "] expected channels > 0, got ", o.channels);
    if (o.affine) {
      weight = this->parameter({o.channels}, 1);
      bias = this->parameter({o.channels}, 0);
    }
    if (!o.track) return;
    running_mean = zeros({o.channels});
    running_var = ones({o.channels});
    num_batches_tracked = zeros({}, {.dtype = i64});
  }
};

/// Normalises each channel over the batch (Ioffe and Szegedy, 2015). Training uses the biased variance of the batch and
/// puts the unbiased one into running_var; momentum nullopt keeps the plain average of all batches.
struct BatchNorm : ChannelNorm<BatchNorm> {
  struct Options {
    int64_t channels;
    double eps = 1e-5;
    std::optional<double> momentum = 0.1;
    bool affine = true, track = true;
  };
  explicit BatchNorm(const Options& options) : ChannelNorm("BatchNorm", options), o(options) {}
  Variable forward(const Variable& x);
  std::string options() const override { return str("channels ", o.channels); }

  Options o;
  /// If set, replaces batch_norm() in training: (x, weight, bias, running_mean, running_var, momentum, eps).
  /// extensions/vision/sync_batch_norm.h installs a function that computes the statistics over all ranks.
  std::function<Variable(const Variable&, const Variable&, const Variable&, const Tensor&, const Tensor&, double,
                         double)>
      across_ranks;
  Dims allowed_ranks{2, 3, 4};
};
/// BatchNorm of inputs (N, C) or (N, C, L).
struct BatchNorm1d : BatchNorm {
  explicit BatchNorm1d(const Options& o) : BatchNorm(o) { allowed_ranks = {2, 3}; }
};
/// BatchNorm of inputs (N, C, H, W).
struct BatchNorm2d : BatchNorm {
  explicit BatchNorm2d(const Options& o) : BatchNorm(o) { allowed_ranks = {4}; }
};

}  // namespace lockstep::nn
