#pragma once
// What a plan of axes (parallel/mesh.h) will cost before anything runs: bytes of each stage's ranks, traffic of a step
// on each axis, the bubble, and the time of a step.
#include <vector>

#include "engine/plan.h"
#include "parallel/mesh.h"

namespace lockstep::engine {

struct PlanForecast {
  parallel::Plan plan;
  Config config;  ///< resolved
  ModelShape model;
  std::vector<int> bounds;       ///< where each virtual stage begins, and the number of layers
  std::vector<Forecast> stages;  ///< what a rank of each stage has (of slices: the first, which is the largest), among
                                 ///< copies and those that share sequences
  std::vector<double> flops;     ///< of a token's forward at a rank of each stage
  std::vector<double> stage_traffic,
      slice_traffic;  ///< bytes that such a rank sends in a step: to other stages; to other slices
  std::vector<double>
      context_traffic;  ///< and to those that share its sequences, by ring attention (parallel/sequence/attention.h)
  std::vector<double> expert_traffic;  ///< and to those that have other experts, with tokens spread evenly
  double bubble = 0,
         formula = 0;  ///< idle part of all ranks' time: simulated with these stages, and the formula of equal ones
  double copy_traffic(size_t stage) const { return stages[stage].gradient_traffic + stages[stage].parameter_traffic; }
};

/// Error with the reason and the nearest plan for one that cannot be. ZeRO's stage: the plan's, or else the config's.
PlanForecast plan_parts(const Config& config, const ModelShape& model, const parallel::Plan& plan);

/// Seconds of a step, and what they are made of.
struct PredictedTime {
  double compute = 0, communication = 0, optimizer = 0, step = 0;
  double tokens = 0;  ///< of all ranks, each second
};
PredictedTime predict(const PlanForecast& plan, const Speeds& speeds);
/// Whether replicas' communication goes on beside computing.
bool overlaps(const PlanForecast& plan);

}  // namespace lockstep::engine
