#pragma once
// What a plan of axes (parallel/mesh.h) will cost before anything runs: bytes of each stage's ranks, traffic of a step on each axis, the bubble,
// and the time of a step. For nn::GPT, whose layers are tokens, positions, blocks, norm and head.
#include <vector>

#include "engine/plan.h"
#include "parallel/mesh.h"

namespace lockstep::engine {

struct PartsPlan {
  parallel::Plan plan;
  Config config;                  ///< resolved
  ModelShape model;
  std::vector<int> bounds;        ///< where each virtual stage begins, and the number of layers
  std::vector<Plan> stages;       ///< what a rank of each stage has (of slices: the first, which is the largest), among copies and those that share sequences
  std::vector<double> flops;      ///< of a token's forward at a rank of each stage
  std::vector<double> stage_traffic, slice_traffic;  ///< bytes that such a rank sends in a step: to other stages; to other slices
  std::vector<double> context_traffic;  ///< and to those that share its sequences, by ring attention (sequence/attention.h)
  std::vector<double> expert_traffic;   ///< and to those that have other experts, with tokens spread evenly
  double bubble = 0, formula = 0; ///< idle part of all ranks' time: simulated with these stages, and the formula of equal ones
  double copy_traffic(size_t stage) const { return stages[stage].gradient_traffic + stages[stage].parameter_traffic; }
};

/// Error with the reason and the nearest plan for one that cannot be. ZeRO's stage: the plan's, or else the config's.
PartsPlan plan_parts(const Config& config, const ModelShape& model, int64_t heads, const parallel::Plan& plan);
PredictedTime predict(const PartsPlan& plan, const Speeds& speeds);

}  // namespace lockstep::engine
