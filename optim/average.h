#pragma once
// Averages of weights, kept outside the optimizer: stochastic weight averaging (Izmailov et al., 2018) and
// exponential moving averages. For models with batch norm call nn::update_bn() while the averages are swapped in. The
// statistics that update_bn() computes are swapped together with the averages. ZeRO and the programs in apps/ use
// Optimizer::keep_average() instead.
#include "optim/optimizer.h"

namespace lockstep::optim {

/// PyTorch's AveragedModel. The average is the mean of the parameters at all calls of update() or, with decay > 0, each
/// call sets average = decay * average + (1 - decay) * parameter. The first call copies the parameters.
class WeightAverage {
 public:
  /// Error for an empty list, a decay outside [0, 1), and parameters that are not floating.
  explicit WeightAverage(std::vector<Variable> parameters, double decay = 0);
  /// Adds the current parameters to the averages. Error while swap() has put them into the parameters.
  void update();
  /// Exchanges averages and parameters, for an evaluation; a second call exchanges them back. Error before the first
  /// update(). Averages of 16-bit parameters are f32, and are the same f32 numbers after the second call. Between the
  /// two calls, do not call update() or load_state().
  void swap();
  int64_t updates() const { return updates_; }                       ///< number of updates
  const std::vector<Tensor>& averages() const { return averages_; }  ///< one average per parameter, in the same order
  /// Averages and number of updates; the tensors share memory with this object.
  OptimizerState state() const;
  /// Loads what state() returned. Error, with nothing changed, for another number of averages or another shape.
  void load_state(const OptimizerState& state);

 private:
  std::vector<Variable> parameters_;
  std::vector<Tensor> averages_;                                     // f32 for 16-bit parameters
  std::vector<Tensor> own_;                                          // the parameters' own values while swapped
  std::shared_ptr<std::vector<std::pair<Tensor, Tensor>>> buffers_;  // OtherValues (autograd/stand_in.h)
  double decay_;
  int64_t updates_ = 0;
};

}  // namespace lockstep::optim
