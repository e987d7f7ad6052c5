#pragma once
// What a configuration will cost before anything runs: who owns what, bytes of each rank, traffic and time of a step.
// Shapes are enough; nothing of the model's size is allocated, and no rank is started.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/model_shape.h"
#include "parallel/mesh.h"
#include "pipeline/schedule.h"
#include "zero/units.h"

namespace lockstep::engine {

/// Of one rank, without activations.
struct RankBytes {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t parameters_elsewhere = 0, optimizer_elsewhere = 0;  ///< offloaded: host memory or files
  int64_t buffers = 0;                                        ///< of gradients on their way (stages 2 and 3)
  int64_t total() const { return parameters + gradients + optimizer + buffers; }
};

struct Forecast {
  Config config;  ///< resolved
  ModelShape model;
  int ranks = 1;
  DType parameter_dtype = f32, gradient_dtype = f32;
  std::string optimizer;  ///< "AdamW", "Muon and AdamW"
  std::vector<double>
      state_bytes;  ///< that the optimizer keeps for an element of each parameter, master weights included
  std::vector<zero::PlannedUnit> units;
  std::vector<RankBytes> bytes;  ///< of each rank
  zero::ModelState formula;      ///< without padding, bytes of a rank
  int64_t padding = 0;           ///< elements of all units
  int64_t largest_module =
      0;  ///< stage 3: elements that are whole at a time, beside persistent ones and what is gathered ahead
  double gradient_traffic = 0, parameter_traffic = 0;  ///< bytes that a rank sends in a step
  bool trains(const zero::PlannedUnit& unit) const { return model.parameters[unit.parameters[0]].trains; }
  const RankBytes& fullest() const;
  /// Bytes that the fullest rank's optimizer reads and writes: state both ways, parameters and gradients one.
  double optimizer_traffic() const;
};

/// Error for a config that is not legal. `config` as read, not resolved. sharing: neighbouring ranks that have the same
/// samples, each a part of them. expert_parallel: neighbouring samples' ranks that have different experts; the model
/// then has those of one rank.
Forecast plan(const Config& config, const ModelShape& model, int ranks, int sharing = 1, int expert_parallel = 1);

/// What a plan of axes (parallel/mesh.h) costs: bytes of each stage's ranks, traffic of a step on each axis, the
/// bubble.
struct PlanForecast {
  parallel::Plan plan;
  Config config;  ///< resolved
  ModelShape model;
  pipeline::Schedule schedule;
  std::vector<int> bounds;       ///< where each virtual stage begins, and the number of layers
  std::vector<Forecast> stages;  ///< what a rank of each stage has (of slices: the first, which is the largest), among
                                 ///< copies and those that share sequences
  std::vector<double> flops;     ///< of a token's forward at a rank of each stage
  /// Bytes that such a rank sends in a step: to other stages, to other slices, to those that share its sequences (by
  /// ring attention, parallel/sequence/attention.h), to those that have other experts (with tokens spread evenly).
  std::vector<double> stage_traffic, slice_traffic, context_traffic, expert_traffic;
  double bubble = 0,
         formula = 0;  ///< idle part of all ranks' time: simulated with these stages, and the formula of equal ones
  double copy_traffic(size_t stage) const { return stages[stage].gradient_traffic + stages[stage].parameter_traffic; }
};

/// Error with the reason and the nearest plan for one that cannot be. ZeRO's stage: the plan's, or else the config's.
/// seconds: of each layer, by which stages are cut in place of what the config says.
PlanForecast plan_parts(const Config& config, const ModelShape& model, const parallel::Plan& plan,
                        const std::vector<double>& seconds = {});

/// Speeds that a prediction stands on.
struct Speeds {
  double flops = 0;      ///< of a rank, each second
  double bandwidth = 0;  ///< bytes that a rank sends, each second
  double memory = 0;     ///< bytes that the optimizer reads and writes, each second
};
/// Measured here in about a second: a matrix product in `dtype`, and a copy, which is what ranks of one machine do to
/// send.
Speeds measure_speeds(DType dtype);

/// Seconds of a step, and what they are made of.
struct PredictedTime {
  double compute = 0, communication = 0, optimizer = 0, step = 0;
  double tokens = 0;  ///< of all ranks, each second
};
PredictedTime predict(const PlanForecast& plan, const Speeds& speeds);
/// Whether replicas' communication goes on beside computing.
bool overlaps(const PlanForecast& plan);

}  // namespace lockstep::engine
