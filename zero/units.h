#pragma once
// Which parameters travel together, in units, from their names and sizes alone: what ZeRO builds from a module, and
// what a plan prints without one.
#include <string>
#include <vector>

#include "zero/zero.h"

namespace lockstep::zero {

/// A parameter as a plan sees it.
struct PlannedParameter {
  std::string name;  ///< its module is all but the last part
  int64_t numel = 0;
  std::string kind = {};  ///< a unit has parameters of one kind: dtype, trained or frozen
  int ranks = 1;          ///< that have it
  bool trains = true;
  bool elementwise = true;  ///< its optimizer's rule: else it is not cut, and one rank owns it
};

/// In the order in which gradients are expected: backward makes them in the reverse order of forward, roughly that of
/// fields(). In stage 3 a module has its own parameters, or all below it when it is small (module_size); what persists
/// is handled as in stage 2.
std::vector<PlannedUnit> plan_units(const std::vector<PlannedParameter>& parameters, const ZeroOptions& options);

}  // namespace lockstep::zero
