#pragma once
// Decides, before any rank starts, whether a configuration can be trained under a plan of ranks.
#include <string>
#include <vector>

#include "engine/config.h"
#include "parallel/mesh.h"

namespace lockstep::engine {

/// The reasons why this configuration cannot run under this plan, including those of parallel::reasons_against(); empty
/// if it can. optimizer: name of the optimizer that the program passes; "": the config's.
std::vector<std::string> reasons_against(const Config& config, const parallel::Plan& plan,
                                         const parallel::PlanSizes& sizes, const std::string& optimizer = "");
/// Checks that the configuration can run under this plan. The Error names all reasons why not, and the nearest plan on
/// the same number of ranks that works.
void check_plan(const Config& config, const parallel::Plan& plan, const parallel::PlanSizes& sizes,
                const std::string& optimizer = "");

/// The reasons of reasons_against() that concern the optimizer; they do not depend on sizes.
std::vector<std::string> optimizer_reasons(const Config& config, const parallel::Plan& plan,
                                           const std::string& optimizer = "");
/// A warning for each key of `config` that the optimizer ignores.
std::vector<std::string> optimizer_warnings(const Config& config, const std::string& optimizer = "");

}  // namespace lockstep::engine
