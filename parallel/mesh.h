#pragma once
// How ranks share a model. A Plan says into how many copies, stages and slices it is cut; a Mesh says who is where, and
// has a group for each axis.
//
//   const parallel::Plan plan = parallel::parse_plan("dp2+pp2+tp2+zero1");   // pure: asks no rank
//   parallel::check_plan(plan, {.ranks = 8, .layers = 6, .heads = 4});       // Error: why not, and what can be
//   const parallel::Mesh mesh(plan, dist::world());                          // on every rank
//   mesh.tp().all_reduce(...);
//
// Axes from the slowest to the fastest: dp (copies), pp (stages), cp (parts of a sequence), tp (slices of layers). What
// talks most lies together: slices meet in every layer, stages at their ends, copies once a step.
//
//   dp2+pp2+tp2, rank = (dp·2 + pp)·2 + tp     copy 0: stage 0 has ranks 0 1, stage 1 ranks 2 3;     copy 1: 4 5, 6 7
//
// Experts (ep) are dealt over neighbouring copies: ep divides dp, and adds no ranks.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::parallel {

struct Plan {
  int dp = 1, pp = 1, cp = 1, tp = 1;
  int ep = 1;     ///< of dp
  int zero = -1;  ///< stage of ZeRO among the copies; -1: not said, which is 0
  int ranks() const { return dp * pp * cp * tp; }
  friend bool operator==(const Plan&, const Plan&) = default;
};
/// "dp2+pp2+tp2+zero1": words in any order, each axis once; one that is not named is 1. Error that says what is known.
Plan parse_plan(std::string_view text);
/// In the order above, without what is 1; "dp1" when nothing is left.
std::string to_string(const Plan& plan);

/// Where a rank stands.
struct Coordinates {
  int dp = 0, pp = 0, cp = 0, tp = 0, ep = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};
Coordinates coordinates_of(const Plan& plan, int rank);

/// What a plan must fit. 0: not known, and not checked.
struct PlanSizes {
  int64_t ranks = 0;
  int64_t layers = 0;                                     ///< that a pipeline can be cut into
  int64_t chunks = 1;                                     ///< of layers at each stage
  int64_t heads = 0, kv_heads = 0, width = 0, inner = 0;  ///< that slices cut evenly
  int64_t vocab = 0;                                      ///< that they cut as it comes
  int64_t context = 0;                                    ///< tokens of a sample, that cp cuts
  int64_t context_parts = 1;                              ///< of them at each of its ranks (zigzag: 2)
  bool context_by_heads = false;                          ///< its ranks share the heads, of each slice, too (Ulysses)
  int64_t experts = 0;
  int64_t micro_batches = 0;  ///< of a step, over all copies
};
/// Why the plan cannot be, a reason each; empty when it can.
std::vector<std::string> reasons_against(const Plan& plan, const PlanSizes& sizes);
/// The plan that changes the fewest and the least, on the same ranks; itself when it can be, nothing when none can. An
/// axis whose sizes are not known stays as it is, or goes: nobody could say whether another number can be. also: what
/// else must hold.
std::unique_ptr<Plan> nearest_plan(const Plan& plan, const PlanSizes& sizes,
                                   const std::function<bool(const Plan&)>& also = {});
/// Error with all reasons and the nearest plan.
void check_plan(const Plan& plan, const PlanSizes& sizes);

/// The ranks of `world` as the plan says. Groups are made once, by all ranks.
class Mesh {
 public:
  Mesh(const Plan& plan, dist::ProcessGroup& world);
  const Plan& plan() const { return plan_; }
  const Coordinates& at() const { return at_; }
  dist::ProcessGroup& world() const { return *world_; }
  dist::ProcessGroup& dp() const { return axes_.group("dp"); }
  dist::ProcessGroup& pp() const { return axes_.group("pp"); }
  dist::ProcessGroup& cp() const { return axes_.group("cp"); }
  dist::ProcessGroup& tp() const { return axes_.group("tp"); }
  /// dp and cp: ranks with the same parameters, whose gradients are summed.
  dist::ProcessGroup& copies() const { return *copies_; }
  dist::ProcessGroup& ep() const { return *ep_; }
  /// Of copies(), the ranks with the same experts: gradients of those are summed here.
  dist::ProcessGroup& edp() const { return *edp_; }
  dist::ProcessGroup& model() const { return *model_; }  ///< of one copy: all stages and slices

 private:
  const Plan plan_;
  dist::ProcessGroup* const world_;
  const Coordinates at_;
  const dist::Mesh axes_;
  std::shared_ptr<dist::ProcessGroup> copies_, ep_, edp_, model_;
};

}  // namespace lockstep::parallel
