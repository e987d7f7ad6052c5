#pragma once
// Metrics of numbers and of probabilities: mean squared and absolute error, perplexity.
#include "extensions/metrics/metric.h"

namespace lockstep::metrics {

/// The mean over all elements of (prediction - target)² (mean_squared_error); with `root` its square root.
class MeanSquaredError : public Metric {
 public:
  explicit MeanSquaredError(bool root = false) : Metric("MeanSquaredError", 2), root_(root) {}

 protected:
  void add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;

 private:
  bool root_;
};

/// The mean over all elements of |prediction - target| (mean_absolute_error).
class MeanAbsoluteError : public Metric {
 public:
  MeanAbsoluteError() : Metric("MeanAbsoluteError", 2) {}

 protected:
  void add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;
};

/// Options of Perplexity.
struct PerplexityOptions {
  int64_t dim = 1;              ///< dim of the logits that has the classes, as in cross_entropy(); -1: the last
  int64_t ignore_index = -100;  ///< targets with this value do not count
};
/// exp of the mean cross entropy of the targets. Predictions: logits with a class dim more than the targets, or the
/// targets' log-probabilities, in the targets' shape.
class Perplexity : public Metric {
 public:
  explicit Perplexity(PerplexityOptions options = {}) : Metric("Perplexity", 2), o_(options) {}

 protected:
  void add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;

 private:
  PerplexityOptions o_;
};

}  // namespace lockstep::metrics
