#pragma once
// Predicts the costs of a configuration before it runs: the parameters and bytes on each rank, traffic and time of a
// step. Only shapes are needed; nothing of the model's size is allocated, and no rank is started.
#include <vector>

#include "engine/config.h"
#include "extensions/forecast/model_costs.h"
#include "optim/optimizer.h"
#include "parallel/mesh.h"
#include "pipeline/schedule.h"
#include "zero/units.h"

namespace lockstep::engine {

/// Bytes on one rank, without activations.
struct RankBytes {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t parameters_elsewhere = 0, optimizer_elsewhere = 0;  ///< offloaded to host memory or files
  int64_t buffers = 0;                                        ///< for gradients in transit (stages 2 and 3)
  /// Bytes in the device's memory, without activations.
  int64_t total() const { return parameters + gradients + optimizer + buffers; }
};

/// Costs of data-parallel training, for each rank.
struct Forecast {
  Config config;  ///< the configuration after resolve()
  ModelShape model;
  int ranks = 1;
  DType parameter_dtype = f32, gradient_dtype = f32;
  std::string optimizer;  ///< "AdamW", "Muon and AdamW"
  /// Bytes of optimizer state per element of each parameter, including master weights.
  std::vector<double> state_bytes;
  std::vector<zero::PlannedUnit> units;
  std::vector<RankBytes> bytes;  ///< bytes of each rank
  zero::ModelState formula;      ///< bytes per rank by the ZeRO paper's formula, without padding
  int64_t padding = 0;           ///< elements of padding, over all units
  /// With ZeRO 3: the largest number of elements gathered at one time, without persistent and prefetched parameters.
  int64_t largest_module = 0;
  double gradient_traffic = 0, parameter_traffic = 0;  ///< bytes that a rank sends per step
  /// True if the unit's parameters are not frozen.
  bool trains(const zero::PlannedUnit& unit) const { return model.parameters[unit.parameters[0]].trains; }
  /// The rank with the most bytes.
  const RankBytes& fullest() const;
  /// Bytes that the fullest rank's optimizer moves in a step: it reads and writes its state, reads gradients, and
  /// writes parameters.
  double optimizer_traffic() const;
};

/// Forecast for `ranks` ranks. Calls resolve() on `config`; Error if it is not valid. sharing: number of neighbouring
/// ranks that process the same samples (context parallelism). expert_parallel: number of neighbouring replicas that
/// divide the experts among them; `model` must then have the experts of one rank only.
Forecast plan(const Config& config, const ModelShape& model, int ranks, int context_ranks = 1, int expert_parallel = 1);

/// The optimizer's type and momentum as in a configuration; an empty type if configurations do not know it.
NamedConfig named(const optim::Optimizer& optimizer);

/// Costs of a plan that may combine parallelisms (parallel/mesh.h): bytes on the ranks of each pipeline stage, traffic
/// per step of each parallelism, and the pipeline's idle time.
struct PlanForecast {
  parallel::Plan plan;
  Config config;  ///< the configuration after resolve()
  ModelShape model;
  pipeline::PipelineSchedule schedule;
  std::vector<int> bounds;  ///< the first layer of each virtual stage, then the number of layers
  /// One forecast for each pipeline stage, for the ranks that hold the same parameters (replicas, context parallelism).
  /// With tensor parallelism, each is for the ranks with the first shard of each parameter: no shard is larger.
  std::vector<Forecast> stages;
  std::vector<double> flops;  ///< FLOPs of a token's forward on a rank of each stage
  /// Bytes that a rank of each stage sends per step: to other stages, to tensor-parallel ranks, to ranks that share its
  /// sequences (ring attention, parallel/sequence/attention.h), and to ranks with other experts. The last one assumes
  /// that each expert gets the same number of tokens.
  std::vector<double> stage_traffic, tensor_parallel_traffic, context_traffic, expert_traffic;
  /// Idle fraction of all ranks' time. bubble: simulated with these stages. formula: by the formula for equal stages.
  double bubble = 0, formula = 0;
  /// Bytes that a rank of the stage sends to other replicas per step.
  double data_parallel_traffic(size_t stage) const {
    return stages[stage].gradient_traffic + stages[stage].parameter_traffic;
  }
};

/// Forecast of a plan. Error if the plan does not work, with the reason and the nearest plan that works. The ZeRO stage
/// is the plan's, or the config's if the plan has none. seconds: time of each layer. If given, stages are balanced by
/// these times instead of by pipeline.partition.
PlanForecast plan_parts(const Config& config, const ModelShape& model, const parallel::Plan& plan,
                        const std::vector<double>& seconds = {});

/// Speeds of the machine, for predictions.
struct Speeds {
  double flops = 0;      ///< FLOPs per second and rank
  double bandwidth = 0;  ///< bytes per second that a rank sends
  double memory = 0;     ///< bytes per second that the optimizer reads and writes
};
/// Measures the speeds of this machine, in about a second: flops by a matrix product in `dtype`, bandwidth by a copy
/// (as ranks of one machine send by copying), memory by scaling a tensor in place.
Speeds measure_speeds(DType dtype);

/// Predicted seconds of a step, and its parts.
struct PredictedTime {
  double compute = 0, communication = 0, optimizer = 0, step = 0;
  double tokens = 0;  ///< tokens per second of all ranks
};
/// Predicts the time of a step.
PredictedTime predict(const PlanForecast& plan, const Speeds& speeds);
/// True if communication between replicas overlaps with computation.
bool overlaps(const PlanForecast& plan);

}  // namespace lockstep::engine
