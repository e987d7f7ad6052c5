#pragma once
// Predicts the time of a training step on ranks that do not exist: costs of its parts (given, measured or from a trace)
// are combined by the cost models of schedules and collectives.
//
//   step = compute + uneven stages + tensor parallel + idle + messages + gradients + parameters + optimizer
//
// Ranks are laid out as a mesh pp x dp x tp with tp fastest: a tensor-parallel group is on one host if it fits, then
// come replicas, then stages.

#include "extensions/forecast/plan.h"
#include "extensions/forecast/run.h"
#include "extensions/forecast/simulate.h"

namespace lockstep::report {

/// The machines on which the ranks run.
struct Cluster {
  dist::Network network;  ///< links between hosts, and within a host; `within` unset: like `between`
  int ranks_per_host = 8;
};

/// The training to predict.
struct TrainingJob {
  engine::ModelShape model;   ///< the model, with each layer's seconds on a rank that has the whole layer
  parallel::Plan plan;        ///< the plan, with cp = ep = 1
  int64_t micro_batch = 1;    ///< samples of a micro-batch
  int64_t micro_batches = 1;  ///< micro-batches per step on each replica
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::one_f_one_b;
  int chunks = 0;          ///< chunks per rank; 0: the schedule's default
  DType dtype = f32;       ///< dtype of parameters, gradients and activations
  bool recompute = false;  ///< true: blocks repeat their forward in the backward
  bool overlap = true;     ///< true: reduce gradients during the backward (without a pipeline)
  double bucket_bytes = 25 * 1048576.;
  int64_t overlap_chunks = 0;  ///< chunks of tensor-parallel products; 0: as many as on CUDA devices
};

/// Sets the layers' seconds for a speed of `flops` FLOP/s. A backward takes `backward` times a forward.
void give_seconds(engine::ModelShape& model, double flops, double backward = 2);
/// Sets the layers' seconds by running a one-block GPT on `ranks` threads, which share the cores as ranks of a host do.
/// Takes about two seconds.
void measure_gpt(engine::ModelShape& model, int64_t micro_batch, int ranks);
/// Measures the bytes/s that an optimizer's step reads and writes, on `ranks` threads at once.
double measure_memory(int ranks);
/// Measures latency and bandwidth between ranks on this machine: a line fitted to all-reduces of several sizes.
dist::NetworkLink measure_link(int ranks);
/// Sets the layers' seconds from a traced run of the model `traced`, in proportion to FLOPs. batch: how many samples a
/// micro-batch of that run had. Returns bytes/s, as measure_memory() does. Error without traces of steps.
double measure_run(const RunFiles& run, const engine::ModelShape& traced, int64_t batch, engine::ModelShape& model);
/// Latency and bandwidth from the all-reduces in traces. Error for fewer than two sizes.
dist::NetworkLink link_of_traces(const std::vector<RankTrace>& traces);

/// One term of the step's time.
struct Term {
  std::string name, explanation;
  double seconds = 0;  ///< time per step that does not overlap with computing
};

/// The prediction for a step.
struct StepPrediction {
  std::vector<Term> terms;  ///< parts of the step's time, which add up to all of it
  double step = 0;
  size_t bound = 0;                  ///< index of the largest term
  double forward = 0, backward = 0;  ///< seconds of a micro-batch on a rank that has the whole model
  double tokens = 0;                 ///< tokens per second on all ranks
  double bubble = 0;                 ///< idle fraction of the slowest rank, without messages
  /// Bytes that the busiest rank sends per step.
  double gradient_bytes = 0, parameter_bytes = 0, tensor_bytes = 0, message_bytes = 0;
  engine::RankBytes memory;  ///< bytes on the fullest rank, without activations
  double flops = 0;          ///< FLOPs of the model per step on all ranks, without recomputation
};
/// Predicts a step. memory: bytes/s that the optimizer reads and writes. Error for an impossible plan (more stages than
/// layers, indivisible heads or widths, ...).
StepPrediction predict_step(const TrainingJob& job, double memory, const Cluster& cluster);

/// Seconds of a collective among `n` ranks whose numbers are `stride` apart, as a ring or, if several of the ranks
/// share a host, as rings within and between hosts.
double collective_seconds(dist::Collective collective, int n, int stride, double bytes, const Cluster& cluster);

}  // namespace lockstep::report
