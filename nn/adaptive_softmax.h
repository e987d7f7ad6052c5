#pragma once
// A softmax over many classes, of which few are common (Grave et al., 2017): torch.nn.AdaptiveLogSoftmaxWithLoss.
#include "nn/container.h"
#include "nn/linear.h"

namespace lockstep::nn {

/// Classes are sorted, the most common first. Those below cutoffs[0] have scores of their own in the head, beside one
/// for each cluster [cutoffs[i], cutoffs[i + 1]), whose classes are scored by a product of two ever smaller matrices.
struct AdaptiveLogSoftmaxWithLoss : Layer<AdaptiveLogSoftmaxWithLoss> {
  struct Options {
    int64_t in, classes;
    std::vector<int64_t> cutoffs;  ///< they grow, from 1 to classes - 1
    double div_value = 4;          ///< cluster i has in / div_value^(i + 1) features
    bool head_bias = false;
  };
  struct Output {
    Variable output;  ///< log probabilities of the targets, (N) or ()
    Variable loss;    ///< minus their mean
    void each_variable(const auto& fn) { fn(output), fn(loss); }
  };
  explicit AdaptiveLogSoftmaxWithLoss(const Options& options);
  /// x (N, in), target i64 (N); or x (in), target (). Clusters without targets get gradients of 0.
  Output forward(const Variable& x, const Tensor& target);
  Variable log_prob(const Variable& x);  ///< x (N, in): (N, classes)
  Tensor predict(const Variable& x);     ///< the most probable classes, i64: (N), or () for x (in)
  void fields(Fields& f) override { f("head", head)("tail", tail); }
  std::string options() const override;

  Options o;
  Linear head;
  ModuleList<Sequential> tail;
};

}  // namespace lockstep::nn
