#pragma once
// The average of the parameters (ema.decay) in their place, for an evaluation.
#include <vector>

#include "zero/zero.h"

namespace lockstep::train {

/// While it lives, parameters are the averages that their optimizers keep (optim::Optimizer::keep_average), under every
/// plan and stage; then they have their own bits again. Between steps. Collective at both ends.
class Averaged {
 public:
  explicit Averaged(zero::Zero& zero);
  ~Averaged() noexcept(false);
  Averaged(const Averaged&) = delete;

 private:
  void put(const std::vector<Tensor>& values);
  zero::Zero& zero_;
  std::vector<Tensor> places_, own_;  // where this rank's part of the parameters lies, and what was there
  int exceptions_;
};

}  // namespace lockstep::train
