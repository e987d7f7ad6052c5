#pragma once
// Decisions about parameters of which several ranks keep a copy: a line search or a plateau must come to the same
// result on all of them, so no rank decides by a number of its own.
#include <functional>
#include <memory>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// The mean of a number over some ranks, called by all of them. `what` is its name in messages.
using MeanOverRanks = std::function<double(double value, const char* what)>;

/// While it lives, agreed() of these parameters takes this mean. Made by whatever reduces gradients over ranks.
class SharedParameters {
 public:
  SharedParameters(const std::vector<Variable>& parameters, MeanOverRanks mean);
  ~SharedParameters();
  SharedParameters(const SharedParameters&) = delete;

 private:
  std::vector<Variable> parameters_;
  std::shared_ptr<const MeanOverRanks> mean_;
};
/// Null where nobody shares it.
std::shared_ptr<const MeanOverRanks> mean_over_ranks(const Variable& parameter);

/// The mean over the ranks that share any of the parameters (DistributedDataParallel, ZeRO), called by all of them; the
/// value itself where nobody shares them.
double agreed(const std::vector<Variable>& parameters, double value, const char* what);

}  // namespace lockstep
