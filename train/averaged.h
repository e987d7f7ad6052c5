#pragma once
// Replaces the parameters by their averages (ema.decay) during an evaluation.
#include <vector>

#include "zero/zero.h"

namespace lockstep::train {

/// While an Averaged lives, the parameters have the averaged values that their optimizers keep
/// (optim::Optimizer::keep_average), under every plan and ZeRO stage. The destructor restores the old values bit for
/// bit. Use an Averaged between steps. Construction and destruction are collective.
class Averaged {
 public:
  explicit Averaged(zero::Zero& zero);
  ~Averaged() noexcept(false);
  Averaged(const Averaged&) = delete;

 private:
  void put(const std::vector<Tensor>& values);
  zero::Zero& zero_;
  std::vector<Tensor> places_, own_;  // this rank's part of the parameters, and a copy of the values before averaging
  int exceptions_;
};

}  // namespace lockstep::train
