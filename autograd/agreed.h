#pragma once
// Decisions about parameters of which several ranks hold copies. A line search or ReduceLROnPlateau must decide the
// same on every rank. Therefore the ranks average the numbers on which the decision depends.
#include <functional>
#include <memory>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Averages a number over some ranks. All these ranks must call it. `what` names the number in errors.
using MeanOverRanks = std::function<double(double value, const char* what)>;

/// Registers parameters that several ranks hold copies of, with the function that averages a number over these ranks.
class SharedParameters {
 public:
  /// Registers `parameters` with the averaging function `mean`, until this object is destroyed.
  SharedParameters(const std::vector<Variable>& parameters, MeanOverRanks mean);
  ~SharedParameters();
  SharedParameters(const SharedParameters&) = delete;

 private:
  std::vector<Variable> parameters_;
  std::shared_ptr<const MeanOverRanks> mean_;
};
/// The averaging function with which a parameter is registered, or null.
std::shared_ptr<const MeanOverRanks> mean_over_ranks(const Variable& parameter);

/// Averages `value` over the ranks that hold copies of the parameters (DistributedDataParallel, ZeRO). All these ranks
/// must call agreed(). Returns `value` itself if no other rank holds copies. `what` names the value in errors.
double agreed(const std::vector<Variable>& parameters, double value, const char* what);

}  // namespace lockstep
