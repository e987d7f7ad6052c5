#pragma once
// Decisions about parameters that several ranks hold copies of. A line search or a plateau must reach the same result
// on all of them, so no rank decides by its own number alone.
#include <functional>
#include <memory>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Averages a number over some ranks; called by all of them. `what` names the number in error messages.
using MeanOverRanks = std::function<double(double value, const char* what)>;

/// While a SharedParameters lives, agreed() uses its mean for its parameters. DDP and ZeRO create them.
class SharedParameters {
 public:
  /// Registers `mean` for `parameters`.
  SharedParameters(const std::vector<Variable>& parameters, MeanOverRanks mean);
  ~SharedParameters();
  SharedParameters(const SharedParameters&) = delete;

 private:
  std::vector<Variable> parameters_;
  std::shared_ptr<const MeanOverRanks> mean_;
};
/// The mean registered for a parameter, or null.
std::shared_ptr<const MeanOverRanks> mean_over_ranks(const Variable& parameter);

/// `value` averaged over the ranks that share any of the parameters (DistributedDataParallel, ZeRO). All these ranks
/// must call agreed(). Returns `value` itself when no parameter is shared.
double agreed(const std::vector<Variable>& parameters, double value, const char* what);

}  // namespace lockstep
