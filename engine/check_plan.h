#pragma once
// The one place that says what cannot be trained: a configuration under a plan of ranks, asked before a rank starts.
#include <string>
#include <vector>

#include "engine/config.h"
#include "parallel/mesh.h"

namespace lockstep::engine {

/// Why this configuration cannot run under this plan, a reason each, parallel::reasons_against() among them. Empty: it
/// can. optimizer: its name, where the program brings one.
std::vector<std::string> reasons_against(const Config& config, const parallel::Plan& plan,
                                         const parallel::PlanSizes& sizes, const std::string& optimizer = "");
/// Error with all reasons, and the nearest plan on the same ranks that can be.
void check_plan(const Config& config, const parallel::Plan& plan, const parallel::PlanSizes& sizes,
                const std::string& optimizer = "");

/// Whether it moves gradients between ranks itself: "OneBitAdam" of the library and "onebitadam" of the files are one.
bool is_one_bit(const std::string& optimizer);
/// What of reasons_against() is against such an optimizer, for who knows no ranks yet; and what it ignores.
std::vector<std::string> optimizer_reasons(const Config& config, const parallel::Plan& plan,
                                           const std::string& optimizer = "");
std::vector<std::string> one_bit_warnings(const Config& config, const std::string& optimizer = "");

}  // namespace lockstep::engine
