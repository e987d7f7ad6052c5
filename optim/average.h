#pragma once
// SWALR, the schedule of stochastic weight averaging (Izmailov et al., 2018).
#include "optim/schedule.h"

namespace lockstep::optim {

/// PyTorch's SWALR: moves the rate from its value at construction to swa_lr within anneal_epochs steps, and then keeps
/// swa_lr.
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
