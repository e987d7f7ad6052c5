#pragma once
// A metric: update() with each batch, then compute(). It keeps sums (or, for AUROC, all scores) instead of a mean of
// means, so its value does not depend on how samples lie in batches and on ranks.
//
//   metrics::F1Score f1({.classes = 3, .average = metrics::Average::macro});
//   for (auto& [x, y] : loader) f1.update(net(x).tensor(), y);
//   const double value = f1.compute(dist::world()).item();
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::dist {
class ProcessGroup;
}
namespace lockstep::train {
struct Predictions;
}

namespace lockstep::metrics {

/// The base class of all metrics. A metric of your own derives from it: it says how a batch becomes numbers that can be
/// summed, and what the sums amount to.
class Metric {
 public:
  virtual ~Metric() = default;
  /// Adds a batch; each class says which shapes it takes. It waits for the device of the tensors. After an Error the
  /// metric is as it was before the call.
  void update(const Tensor& predictions, const Tensor& targets);
  /// The value over all batches since reset(), on the CPU. Error if there was no target to count, except for
  /// ConfusionMatrix.
  Tensor compute() const { return result(state_); }
  /// The value over all batches of all ranks of the group; a rank may have had none. Collective.
  Tensor compute(dist::ProcessGroup& group) const;
  /// Forgets all batches.
  void reset() { state_.assign(sums_, 0.); }
  const std::string& name() const { return name_; }  ///< the name in Error texts, such as "F1Score"

 protected:
  /// Whether the state has a fixed number of sums, or grows with each batch and is gathered from all ranks.
  enum class State { sums, list };
  /// sums: how many numbers the state has; for a list: 0.
  explicit Metric(std::string name, int64_t sums, State kind = State::sums)
      : name_(std::move(name)), sums_(size_t(sums)), kind_(kind), state_(size_t(sums)) {}
  /// Adds the batch to `batch`: `sums` zeros, or an empty list.
  virtual void add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const = 0;
  /// The value that a state stands for.
  virtual Tensor result(const std::vector<double>& state) const = 0;
  /// count, if it is above 0, else an Error: there is nothing to divide by.
  double counted(double count) const;

 private:
  std::string name_;
  size_t sums_;
  State kind_;
  std::vector<double> state_;
};

/// Moves a metric into a pointer, for a MetricCollection.
template <class M> std::shared_ptr<Metric> share(M metric) { return std::make_shared<M>(std::move(metric)); }

/// Named metrics that are updated together. As TrainerOptions::compute_metrics it gives a Trainer their values:
///   options.compute_metrics = MetricCollection({{"f1", share(F1Score({.classes = 3}))}, ...});
class MetricCollection {
 public:
  /// Values by name. A metric of several numbers gives NAME_0, NAME_1, ...; a matrix NAME_0_0, NAME_0_1, ...
  using Values = std::vector<std::pair<std::string, double>>;
  /// Error if two metrics have one name.
  explicit MetricCollection(std::vector<std::pair<std::string, std::shared_ptr<Metric>>> metrics);
  /// Updates all metrics. If one of them throws an Error, those before it have been updated.
  void update(const Tensor& predictions, const Tensor& targets) const;
  Values compute() const;                           ///< the values of this rank's batches
  Values compute(dist::ProcessGroup& group) const;  ///< the values of all ranks' batches; collective
  void reset() const;                               ///< resets all metrics
  /// Values of these predictions alone: reset(), update() and compute().
  Values operator()(const train::Predictions& all) const;

 private:
  std::vector<std::pair<std::string, std::shared_ptr<Metric>>> metrics_;
};

}  // namespace lockstep::metrics
