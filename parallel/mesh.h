#pragma once
// A Plan says how ranks share a model: the number of replicas, pipeline stages, sequence parts and tensor shards. A
// Mesh gives every rank its coordinates, and a process group for each axis.
//
//   const parallel::Plan plan = parallel::parse_plan("dp2+pp2+tp2+zero1");   // needs no other rank
//   parallel::check_plan(plan, {.ranks = 8, .layers = 6, .heads = 4});       // Error: reasons, nearest valid plan
//   const parallel::Mesh mesh(plan, dist::world());                          // collective
//   mesh.tp().all_reduce(...);
//
// Axes from the slowest to the fastest: dp (replicas), pp (pipeline stages), cp (parts of a sequence), tp (shards of
// layers). Ranks that communicate most are neighbours: tp in every layer, pp between stages, dp once per step.
//
//   dp2+pp2+tp2, rank = (dp·2 + pp)·2 + tp          stage 0     stage 1
//                                       replica 0   ranks 0 1   ranks 2 3
//                                       replica 1   ranks 4 5   ranks 6 7
//
// Experts (ep) are shared among neighbouring replicas: ep divides dp, and adds no ranks.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::parallel {

/// Sizes of the axes.
struct Plan {
  int dp = 1, pp = 1, cp = 1, tp = 1;              ///< replicas, pipeline stages, context- and tensor-parallel ranks
  int ep = 1;                                      ///< expert-parallel ranks; divides dp
  int zero = -1;                                   ///< ZeRO stage over the replicas; -1: not given, which means 0
  int ranks() const { return dp * pp * cp * tp; }  ///< ranks that the plan needs
  friend bool operator==(const Plan&, const Plan&) = default;
};
/// Parses "dp2+pp2+tp2+zero1": words in any order, each axis at most once; an axis that is not named has size 1. Error
/// for unknown words and sizes out of range.
Plan parse_plan(std::string_view text);
/// Text of a plan as parse_plan() reads it, without axes of size 1; "dp1" if no axis is left.
std::string to_string(const Plan& plan);

/// Coordinates of a rank on each axis.
struct Coordinates {
  int dp = 0, pp = 0, cp = 0, tp = 0, ep = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};
/// The coordinates of a rank. Error for a rank outside the plan.
Coordinates coordinates_of(const Plan& plan, int rank);

/// Sizes that a plan must fit. 0: unknown, not checked.
struct PlanSizes {
  int64_t ranks = 0;                                      ///< ranks available
  int64_t layers = 0;                                     ///< layers that the pipeline distributes over stages
  int64_t chunks = 1;                                     ///< chunks of layers per stage (interleaved schedules)
  int64_t heads = 0, kv_heads = 0, width = 0, inner = 0;  ///< sizes that tp must divide
  int64_t vocab = 0;              ///< size of the vocabulary, at least tp; tp need not divide it
  int64_t context = 0;            ///< tokens of a sample, which cp must divide
  int64_t context_parts = 1;      ///< pieces of a sequence on each cp rank (zigzag: 2)
  bool context_by_heads = false;  ///< true: cp ranks also share the heads of each tp shard (Ulysses)
  int64_t experts = 0;            ///< experts, which ep must divide
  int64_t micro_batches = 0;      ///< micro-batches of a step in all replicas, which dp must divide
};
/// The reasons why the plan is invalid; empty if it is valid.
std::vector<std::string> reasons_against(const Plan& plan, const PlanSizes& sizes);
/// Finds the nearest valid plan on the same number of ranks: the plan that changes the fewest axes by the smallest
/// factors. Returns `plan` itself if it is valid, null if no plan is valid. If the sizes that limit an axis are
/// unknown, the axis keeps its value or becomes 1. `also` is a condition that the result must meet too.
std::unique_ptr<Plan> nearest_plan(const Plan& plan, const PlanSizes& sizes,
                                   const std::function<bool(const Plan&)>& also = {});
/// Error if the plan is invalid, with all reasons and the nearest plan that fits the known sizes. The model and the
/// configuration may rule out that plan too: engine::check_plan() checks them as well.
void check_plan(const Plan& plan, const PlanSizes& sizes);

/// The process groups that a plan gives this rank: one for each axis, and some for several axes together. The
/// constructor is collective.
class Mesh {
 public:
  /// Error if the plan does not fit the number of ranks. `world` must outlive the mesh.
  Mesh(const Plan& plan, dist::ProcessGroup& world);
  const Plan& plan() const { return plan_; }                    ///< the plan given to the constructor
  const Coordinates& at() const { return at_; }                 ///< this rank's coordinates
  dist::ProcessGroup& world() const { return *world_; }         ///< all ranks
  dist::ProcessGroup& dp() const { return axes_.group("dp"); }  ///< one rank of each replica, at equal coordinates
  dist::ProcessGroup& pp() const { return axes_.group("pp"); }  ///< the stages of one replica
  dist::ProcessGroup& cp() const { return axes_.group("cp"); }  ///< the ranks that share a sequence
  dist::ProcessGroup& tp() const { return axes_.group("tp"); }  ///< the shards of one stage
  /// dp and cp together: all ranks with the same parameters. Gradients are summed over this group.
  dist::ProcessGroup& replicas() const { return *replicas_; }
  dist::ProcessGroup& ep() const { return *ep_; }  ///< ranks of dp() that share the experts
  /// The ranks of replicas() that have the same experts. Gradients of experts are summed over this group.
  dist::ProcessGroup& edp() const { return *edp_; }
  dist::ProcessGroup& model() const { return *model_; }  ///< all ranks of one replica

 private:
  const Plan plan_;
  dist::ProcessGroup* const world_;
  const Coordinates at_;
  const dist::GroupMesh axes_;
  std::shared_ptr<dist::ProcessGroup> replicas_, ep_, edp_, model_;
};

}  // namespace lockstep::parallel
