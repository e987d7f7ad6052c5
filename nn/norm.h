#pragma once
// Normalisation. Weights start at 1, biases at 0.
#include <optional>

#include "nn/module.h"

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

/// Over the batch, per channel (Ioffe and Szegedy, 2015). Trains with the batch's biased variance and keeps the
/// unbiased one in running_var; momentum nullopt keeps the plain average of all batches.
struct BatchNorm : Layer<BatchNorm> {
  struct Options {
    int64_t channels;
    double eps = 1e-5;
    std::optional<double> momentum = 0.1;
    bool affine = true, track = true;
  };
  explicit BatchNorm(const Options& options);
  Variable forward(const Variable& x);
  void fields(Fields& f) override {
    f("weight", weight)("bias", bias)("running_mean", running_mean)("running_var", running_var)("num_batches_tracked",
                                                                                                num_batches_tracked);
  }
  std::string options() const override { return str("channels ", o.channels); }

  Options o;
  Variable weight, bias;
  Tensor running_mean, running_var, num_batches_tracked;
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

/// PyTorch's update_bn: statistics of every batch norm below, anew, as equal shares of the batches that `pass` runs
/// through the model (after optim::WeightAverage::swap()). Modes and momenta are as before at the end.
void update_bn(Module& model, const std::function<void()>& pass);

}  // namespace lockstep::nn
