#pragma once
// Averages of weights, kept outside the optimizer: stochastic weight averaging (Izmailov et al., 2018) and
// exponential moving averages. For models with batch norm call nn::update_bn() while the averages are swapped in. The
// statistics that update_bn() computes are swapped together with the averages. ZeRO and the programs in apps/ use
// Optimizer::keep_average() instead.
#include <functional>
#include <memory>

#include "nn/module.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

/// For update_bn(): the buffers that are swapped together with averaged weights.
struct OtherValues {
  /// Pairs of a buffer and the value that it has while the averages are swapped in, or while they are not.
  std::vector<std::pair<Tensor, Tensor>> pairs;
  std::vector<Tensor> averaged;  ///< buffers that have an average of their own
};

/// Options of a WeightAverage of a model.
struct WeightAverageOptions {
  double decay = 0;  ///< 0: equal shares (SWA); else each update keeps this share of the average (EMA)
  /// True: averages the floating buffers, too, such as batch norm's statistics. Integer buffers keep their values.
  bool use_buffers = false;
};

/// PyTorch's AveragedModel. The average is the mean of the parameters at all calls of update() or, with decay > 0, each
/// call sets average = decay * average + (1 - decay) * parameter. The first call copies the parameters.
class WeightAverage {
 public:
  /// Error for an empty list, a decay outside [0, 1), and parameters that are not floating.
  explicit WeightAverage(std::vector<Variable> parameters, double decay = 0);
  /// Averages the parameters of `model` and, with use_buffers, its buffers. update_bn() is then not needed; what it
  /// computes while the averages are swapped in becomes the buffers' average. Move the model to its device first.
  explicit WeightAverage(nn::Module& model, const WeightAverageOptions& options = {});
  /// Adds the current parameters to the averages. Error while swap() has put them into the parameters.
  void update();
  /// Exchanges averages and parameters, for an evaluation; a second call exchanges them back. Error before the first
  /// update(). Averages of 16-bit parameters are f32, and are the same f32 numbers after the second call. Between the
  /// two calls, do not call update() or load_state().
  void swap();
  int64_t updates() const { return updates_; }  ///< number of updates
  const std::vector<Tensor>& averages() const {
    return averages_;
  }  ///< of each parameter, then of each averaged buffer
  /// Averages and number of updates; the tensors share memory with this object.
  OptimizerState state() const;
  /// Loads what state() returned. Error, with nothing changed, for another number of averages or another shape.
  void load_state(const OptimizerState& state);

 private:
  void add(const Variable& averaged);

  std::vector<Variable> parameters_;  // with use_buffers, then the floating buffers
  std::vector<Tensor> averages_;      // f32 for 16-bit parameters
  std::vector<Tensor> own_;           // the parameters' own values while swapped
  std::shared_ptr<OtherValues> buffers_;
  double decay_;
  int64_t updates_ = 0;
};

}  // namespace lockstep::optim

namespace lockstep::nn {

/// Recomputes the running statistics of every batch norm below `model` as plain averages over the batches that `pass`
/// runs through the model (PyTorch's update_bn). For an averaged model, call it between two
/// optim::WeightAverage::swap() calls. Restores training modes and momenta.
void update_bn(Module& model, const std::function<void()>& pass);

}  // namespace lockstep::nn
