#pragma once
// Normalisation, of activations and of weights. Weights start at 1, biases at 0.
#include <optional>

#include "nn/activation.h"

namespace lockstep::nn {

/// Over the trailing dims `shape` (Ba et al., 2016).
struct LayerNorm : Layer<LayerNorm> {
  struct Options {
    Shape shape;
    double eps = 1e-5;
    bool affine = true, bias = true;
  };
  explicit LayerNorm(const Options& options);
  explicit LayerNorm(int64_t size) : LayerNorm(Options{.shape = {size}}) {}
  Variable forward(const Variable& x) { return layer_norm(x, shape, weight, bias, eps); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override { return str(shape, ", eps ", eps); }

  Shape shape;
  double eps;
  Variable weight, bias;
};

/// Over the last dim, without mean and bias (Zhang and Sennrich, 2019). In 16 bits x is rounded before it is multiplied
/// with the weight, as Llama's.
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

/// One of the two, over the last dim: for models that leave the choice open.
struct Norm : Layer<Norm> {
  enum Kind { layer, rms };
  struct Options {
    Kind kind;
    int64_t size;
    double eps;
    bool bias = true;  ///< of layer
  };
  explicit Norm(const Options& options);
  Variable forward(const Variable& x) {
    return o.kind == layer ? layer_norm(x, {o.size}, weight, bias, o.eps) : rms_norm(x, weight, o.eps);
  }
  /// dropout.added(residual, x) and its norm: in one pass, unless somebody has hooked into the calls of either.
  SumAndNorm of_sum(const Variable& residual, const Variable& x, Dropout& dropout);
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string kind() const override { return o.kind == layer ? "LayerNorm" : "RMSNorm"; }
  std::string options() const override { return str(Shape{o.size}, ", eps ", o.eps); }

  Options o;
  Variable weight, bias;
};

/// Over groups of channels of each sample (Wu and He, 2018). x (N, C, ...).
struct GroupNorm : Layer<GroupNorm> {
  struct Options {
    int64_t groups, channels;
    double eps = 1e-5;
    bool affine = true;
  };
  explicit GroupNorm(const Options& options);
  Variable forward(const Variable& x) { return group_norm(x, groups, weight, bias, eps); }
  void fields(Fields& f) override { f("weight", weight)("bias", bias); }
  std::string options() const override { return str("groups ", groups, ", channels ", channels); }

  int64_t groups, channels;
  double eps;
  Variable weight, bias;
};

/// What norms of channels have: a weight and a bias of each, and running statistics.
template <class Derived> struct ChannelNorm : Layer<Derived> {
  void fields(Fields& f) override {
    f("weight", weight)("bias", bias)("running_mean", running_mean)("running_var", running_var)("num_batches_tracked",
                                                                                                num_batches_tracked);
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

/// Over the batch, per channel (Ioffe and Szegedy, 2015). Trains with the batch's biased variance and keeps the
/// unbiased one in running_var; momentum nullopt keeps the plain average of all batches.
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
  /// Stands in for batch_norm() while training, when set: (x, weight, bias, running_mean, running_var, momentum, eps).
  /// parallel/sync_batch_norm.h puts one here that looks at all ranks.
  std::function<Variable(const Variable&, const Variable&, const Variable&, const Tensor&, const Tensor&, double,
                         double)>
      over_batch;
  Dims allowed_ranks{2, 3, 4};
};
/// x (N, C) or (N, C, L)
struct BatchNorm1d : BatchNorm {
  explicit BatchNorm1d(const Options& o) : BatchNorm(o) { allowed_ranks = {2, 3}; }
};
/// x (N, C, H, W)
struct BatchNorm2d : BatchNorm {
  explicit BatchNorm2d(const Options& o) : BatchNorm(o) { allowed_ranks = {4}; }
};

/// Over each channel of each sample (Ulyanov et al., 2016): x (N, C, ...) or (C, ...). With track, statistics are kept
/// as BatchNorm's, averaged over the samples, and used when not training. PyTorch's default: neither weights nor track.
struct InstanceNorm : ChannelNorm<InstanceNorm> {
  struct Options {
    int64_t channels;
    double eps = 1e-5, momentum = 0.1;
    bool affine = false, track = false;
  };
  Variable forward(const Variable& x);
  std::string options() const override { return str("channels ", o.channels); }

  Options o;  // num_batches_tracked stays 0, as PyTorch's
  int rank;   ///< of x with a batch

 protected:
  InstanceNorm(const Options& options, int rank) : ChannelNorm("InstanceNorm", options), o(options), rank(rank) {}
};
/// x (N, C, L)
struct InstanceNorm1d : InstanceNorm {
  explicit InstanceNorm1d(const Options& o) : InstanceNorm(o, 3) {}
};
/// x (N, C, H, W)
struct InstanceNorm2d : InstanceNorm {
  explicit InstanceNorm2d(const Options& o) : InstanceNorm(o, 4) {}
};
/// x (N, C, D, H, W)
struct InstanceNorm3d : InstanceNorm {
  explicit InstanceNorm3d(const Options& o) : InstanceNorm(o, 5) {}
};

/// x / (k + alpha m)^beta, m the mean of the squares of `size` channels around (Krizhevsky et al., 2012). x (N, C, ...)
/// of at least 3 dims.
struct LocalResponseNorm : Layer<LocalResponseNorm> {
  struct Options {
    int64_t size;
    double alpha = 1e-4, beta = 0.75, k = 1;
  };
  explicit LocalResponseNorm(const Options& options);
  Variable forward(const Variable& x);
  std::string options() const override { return str("size ", o.size); }
  Options o;
};

/// weight = g v / |v|, lengths over all dims but `dim`, or (-1) over all (Salimans and Kingma, 2016). g and v have the
/// names of PyTorch's parametrizations.weight_norm.
struct WeightNorm : Module {
  struct Options {
    int64_t dim = 0;
  };
  WeightNorm(Variable weight, const Options& o);
  Variable weight(bool training) const;
  void fields(Fields& f) override;
  Variable g, v;
  Dims over;
};

/// weight / its largest singular value, by `iterations` steps of the power method a call while training (Miyato et al.,
/// 2018). The rows of the matrix are the weight's `dim`: take 1 for a transposed convolution. PyTorch's names.
struct SpectralNorm : Module {
  struct Options {
    int64_t iterations = 1;
    double eps = 1e-12;
    int64_t dim = 0;
  };
  SpectralNorm(Variable weight, const Options& options);
  Variable weight(bool training);
  void fields(Fields& f) override;
  Options o;
  Variable original;
  Tensor u, v;
};

/// A layer with a weight that is made anew for every call: How is WeightNorm or SpectralNorm. The layer's own weight is
/// undefined between calls.
template <class L, class How> struct Parametrized : Layer<Parametrized<L, How>> {
  explicit Parametrized(L made, const typename How::Options& o = {})
      : layer(std::move(made)), how(std::exchange(layer.weight, {}), o) {}
  template <class... Args>
  requires requires(L& l, const Args&... args) { l(args...); }
  auto forward(const Args&... args) {
    const struct Scope {
      Variable& weight;
      ~Scope() { weight = {}; }
    } scope{layer.weight = how.weight(this->is_training())};
    return layer(args...);
  }
  void fields(Fields& f) override {
    how.fields(f);
    layer.fields(f);
  }
  std::string kind() const override { return how.kind(); }
  std::string options() const override { return layer.kind(); }

  L layer;
  How how;

 protected:
  void on_train(bool training) override { layer.train(training); }
};
/// Sequential net(weight_norm(Linear({.in = 2, .out = 8})), ReLU());
template <class L> Parametrized<L, WeightNorm> weight_norm(L layer, const WeightNorm::Options& o = {}) {
  return Parametrized<L, WeightNorm>(std::move(layer), o);
}
template <class L> Parametrized<L, SpectralNorm> spectral_norm(L layer, const SpectralNorm::Options& o = {}) {
  return Parametrized<L, SpectralNorm>(std::move(layer), o);
}

/// PyTorch's update_bn: statistics of every batch norm below, anew, as equal shares of the batches that `pass` runs
/// through the model: of the average between optim::WeightAverage::swap() and swap(). Modes and momenta stay.
void update_bn(Module& model, const std::function<void()>& pass);

}  // namespace lockstep::nn
