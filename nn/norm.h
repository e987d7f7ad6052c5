#pragma once
// Normalisation of activations (layer, batch, group, instance, local response) and of weights (weight norm, spectral
// norm). Weights start at 1, biases at 0.
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

/// Normalises over each group of channels of each sample (Wu and He, 2018). Input (N, C, ...).
struct GroupNorm : Layer<GroupNorm> {
  struct Options {
    int64_t groups, channels;
    double eps = 1e-5;
    bool affine = true;
  };
  /// Error unless groups divides channels.
  explicit GroupNorm(const Options& options);
  Variable forward(const Variable& x) { return group_norm(x, groups, weight, bias, eps); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override { return str("groups ", groups, ", channels ", channels); }

  int64_t groups, channels;
  double eps;
  Variable weight, bias;
};

/// Base of BatchNorm and InstanceNorm, which normalise each channel separately. Option affine: a weight and a bias per
/// channel. Option track: a running mean and a running variance per channel.
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
  /// parallel/sync_batch_norm.h installs a function that computes the statistics over all ranks.
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

/// Normalises each channel of each sample (Ulyanov et al., 2016). Input (N, C, ...) or (C, ...). With track, running
/// statistics (averages over the samples) are kept and used in evaluation. As in PyTorch, affine and track are off by
/// default.
struct InstanceNorm : ChannelNorm<InstanceNorm> {
  struct Options {
    int64_t channels;
    double eps = 1e-5, momentum = 0.1;
    bool affine = false, track = false;
  };
  Variable forward(const Variable& x);
  std::string options() const override { return str("channels ", o.channels); }

  Options o;  // num_batches_tracked stays 0, as in PyTorch
  int rank;   ///< x.dim() of a batch

 protected:
  InstanceNorm(const Options& options, int rank) : ChannelNorm("InstanceNorm", options), o(options), rank(rank) {}
};
/// InstanceNorm of inputs (N, C, L) or (C, L).
struct InstanceNorm1d : InstanceNorm {
  explicit InstanceNorm1d(const Options& o) : InstanceNorm(o, 3) {}
};
/// InstanceNorm of inputs (N, C, H, W) or (C, H, W).
struct InstanceNorm2d : InstanceNorm {
  explicit InstanceNorm2d(const Options& o) : InstanceNorm(o, 4) {}
};
/// InstanceNorm of inputs (N, C, D, H, W) or (C, D, H, W).
struct InstanceNorm3d : InstanceNorm {
  explicit InstanceNorm3d(const Options& o) : InstanceNorm(o, 5) {}
};

/// x / (k + alpha m)^beta, where m is the mean square of the `size` nearest channels (Krizhevsky et al., 2012). Input
/// (N, C, ...) of at least 3 dims.
struct LocalResponseNorm : Layer<LocalResponseNorm> {
  struct Options {
    int64_t size;
    double alpha = 1e-4, beta = 0.75, k = 1;
  };
  /// Error unless size > 0.
  explicit LocalResponseNorm(const Options& options);
  Variable forward(const Variable& x);
  std::string options() const override { return str("size ", o.size); }
  Options o;
};

/// weight = g v / |v|; norms are taken over all dims except `dim`, or over all dims if `dim` is -1 (Salimans and
/// Kingma, 2016). g and v are saved under the names of PyTorch's parametrizations.weight_norm.
struct WeightNorm : Module {
  struct Options {
    int64_t dim = 0;
  };
  /// v starts as `weight`, g as the norms of v. Error for a weight of less than 2 dims.
  WeightNorm(Variable weight, const Options& o);
  /// Computes the weight that the layer uses in one call.
  Variable weight(bool training) const;
  void fields(Fields& f) override;
  Variable g, v;
  Dims over;
};

/// weight / its largest singular value, estimated by `iterations` power steps per training call (Miyato et al., 2018).
/// The weight is seen as a matrix with one row for each index of dim `dim`: use 1 for a transposed convolution. State
/// names are PyTorch's.
struct SpectralNorm : Module {
  struct Options {
    int64_t iterations = 1;
    double eps = 1e-12;
    int64_t dim = 0;
  };
  /// Starts with 15 power steps. Error for a weight of less than 2 dims, or iterations < 1.
  SpectralNorm(Variable weight, const Options& options);
  /// Computes the weight that the layer uses in one call; in training updates u and v first.
  Variable weight(bool training);
  void fields(Fields& f) override;
  Options o;
  Variable original;
  Tensor u, v;
};

/// A layer whose weight is recomputed in every call by How (WeightNorm or SpectralNorm). Between calls the layer's own
/// weight is undefined.
template <class L, class Parametrization> struct Parametrized : Layer<Parametrized<L, Parametrization>> {
  /// Takes the weight out of `made`.
  explicit Parametrized(L made, const typename Parametrization::Options& o = {})
      : layer(std::move(made)), parametrization(std::exchange(layer.weight, {}), o) {}
  /// Computes the weight and calls the layer.
  template <class... Args>
  requires requires(L& l, const Args&... args) { l(args...); }
  auto forward(const Args&... args) {
    const struct Scope {
      Variable& weight;
      ~Scope() { weight = {}; }
    } scope{layer.weight = parametrization.weight(this->is_training())};
    return layer(args...);
  }
  void fields(Fields& f) override {
    parametrization.fields(f);
    layer.fields(f);
  }
  std::string kind() const override { return parametrization.kind(); }
  std::string options() const override { return layer.kind(); }

  L layer;
  Parametrization parametrization;

 protected:
  void on_train(bool training) override { layer.train(training); }
};
/// Wraps a layer in WeightNorm: Sequential net(weight_norm(Linear({.in = 2, .out = 8})), ReLU());
template <class L> Parametrized<L, WeightNorm> weight_norm(L layer, const WeightNorm::Options& o = {}) {
  return Parametrized<L, WeightNorm>(std::move(layer), o);
}
/// Wraps a layer in SpectralNorm.
template <class L> Parametrized<L, SpectralNorm> spectral_norm(L layer, const SpectralNorm::Options& o = {}) {
  return Parametrized<L, SpectralNorm>(std::move(layer), o);
}

/// Recomputes the running statistics of every batch norm below `model` as plain averages over the batches that `pass`
/// runs through the model (PyTorch's update_bn). For an averaged model, call it between two
/// optim::WeightAverage::swap() calls. Restores training modes and momenta.
void update_bn(Module& model, const std::function<void()>& pass);

}  // namespace lockstep::nn
