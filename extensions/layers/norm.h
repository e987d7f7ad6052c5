#pragma once
// Group norm, instance norm, batch norm of volumes, and norms of weights (weight norm, spectral norm). Weights start at
// 1, biases at 0.
#include <utility>

#include "base/at_end.h"
#include "nn/norm.h"

namespace lockstep {

/// layer_norm over each of `groups` groups of channels of x (N, C, ...); weight and bias (C). Wu and He, 2018.
Variable group_norm(const Variable& x, int64_t groups, const Variable& weight = {}, const Variable& bias = {},
                    double eps = 1e-5);

namespace nn {

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

/// BatchNorm of inputs (N, C, D, H, W); nn/norm.h has the options, and BatchNorm1d and 2d.
struct BatchNorm3d : BatchNorm {
  explicit BatchNorm3d(const Options& o) : BatchNorm(o) { allowed_ranks = {5}; }
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
    layer.weight = parametrization.weight(this->is_training());
    const AtEnd take_out([this] { layer.weight = {}; });
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

}  // namespace nn
}  // namespace lockstep
