#pragma once
// Averages of weights beside the optimizer: stochastic weight averaging (Izmailov et al., 2018) and exponential moving
// averages. What batch norm should know of the averaged model, nn::update_bn() finds between swap() and swap() back,
// and it comes and goes with the averages. Under ZeRO and in the programs Optimizer::keep_average() keeps an average
// instead.
#include "autograd/stand_in.h"
#include "optim/schedule.h"

namespace lockstep::optim {

/// PyTorch's AveragedModel: equal shares of all updates, or with decay > 0 average = decay * average + (1 - decay) *
/// parameter. The first update copies.
class WeightAverage {
 public:
  /// Error for no parameters, a decay outside [0, 1), and parameters that are not floating.
  explicit WeightAverage(std::vector<Variable> parameters, double decay = 0);
  /// Takes the parameters in.
  void update();
  /// Exchanges averages and parameters: for an evaluation, and back. Error before the first update. Averages keep the
  /// bits that 16-bit parameters have no room for; update() and load_state() want the parameters back first.
  void swap();
  int64_t updates() const { return updates_; }
  const std::vector<Tensor>& averages() const { return averages_; }
  OptimizerState state() const;
  /// Error for a count or a shape that differs; then nothing was changed.
  void load_state(const OptimizerState& state);

 private:
  std::vector<Variable> parameters_;
  std::vector<Tensor> averages_;  // f32 for 16-bit parameters
  std::vector<Tensor> own_;       // what parameters hold while the averages stand in
  std::shared_ptr<OtherValues> buffers_ = std::make_shared<OtherValues>();
  double decay_;
  int64_t updates_ = 0;
};

/// PyTorch's SWALR: from the rate at construction to swa_lr in anneal_epochs steps, then constant.
class SWALR : public Schedule {
 public:
  struct Options {
    PerGroup swa_lr;
    int64_t anneal_epochs = 10;
    std::string anneal_strategy = "cos";  ///< or "linear"
  };
  SWALR(Optimizer& optimizer, Options options);

 private:
  double value(int group, int64_t t) const override;
  Options o_;
};

}  // namespace lockstep::optim
