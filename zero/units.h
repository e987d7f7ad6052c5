#pragma once
// Plans units, the groups of parameters that are communicated together, from names and sizes alone: for ZeRO, and for
// printing a plan without a model.
#include <string>
#include <vector>

#include "zero/partition.h"
#include "zero/zero.h"

namespace lockstep::zero {

/// A parameter as the planner sees it.
struct PlannedParameter {
  std::string name;         ///< "h.0.mlp.up.weight"; without the last component, the module's name
  int64_t numel = 0;        ///< elements
  std::string kind = {};    ///< dtype, trained or frozen; a unit has parameters of one kind
  int ranks = 1;            ///< number of ranks that have the parameter
  bool trains = true;       ///< true if an optimizer updates the parameter
  bool elementwise = true;  ///< false: the optimizer's rule needs the whole parameter, so one rank owns it
};

/// Plans the units, in the order in which backward is expected to finish their gradients: roughly the reverse of the
/// given order. In stage 3 every module has units of its own, unless it and the modules below it have at most
/// options.module_size elements together: then they share units. Persistent parameters have units as in stage 2.
std::vector<PlannedUnit> plan_units(const std::vector<PlannedParameter>& parameters, const ZeroOptions& options);

}  // namespace lockstep::zero
