#pragma once
// Softmax over many classes, few of which are common (Grave et al., 2017): torch.nn.AdaptiveLogSoftmaxWithLoss.
#include "nn/container.h"
#include "nn/linear.h"

namespace lockstep::nn {

/// Classes must be sorted by frequency, the most common first. The head scores each class below cutoffs[0], and each
/// cluster of classes [cutoffs[i], cutoffs[i + 1]) as a whole. Two Linears in sequence score the classes within a
/// cluster; the number of features between the two shrinks from cluster to cluster.
struct AdaptiveLogSoftmaxWithLoss : Layer<AdaptiveLogSoftmaxWithLoss> {
  struct Options {
    int64_t in, classes;
    std::vector<int64_t> cutoffs;  ///< strictly increasing, from 1 to classes - 1
    double div_value = 4;          ///< cluster i has inner size in / div_value^(i + 1)
    bool head_bias = false;
  };
  /// Result of forward().
  struct Output {
    Variable output;  ///< log probabilities of the targets, (N) or ()
    Variable loss;    ///< negative mean of output
    /// Calls fn for each variable; see nn/outputs.h.
    void each_variable(const auto& fn) { fn(output), fn(loss); }
  };
  /// Error for invalid cutoffs, or for a div_value so large that a cluster's inner size would be 0.
  explicit AdaptiveLogSoftmaxWithLoss(const Options& options);
  /// x (N, in), target i64 (N); or x (in), target (). Clusters without targets get zero gradients.
  Output forward(const Variable& x, const Tensor& target);
  Variable log_prob(const Variable& x);  ///< x (N, in) gives (N, classes)
  Tensor predict(const Variable& x);     ///< most probable classes, i64: (N), or () for x (in)
  void fields(Fields& f) override { f("head", head)("tail", tail); }
  std::string options() const override;

  Options o;
  Linear head;
  ModuleList<Sequential> tail;
};

}  // namespace lockstep::nn
