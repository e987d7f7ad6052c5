#pragma once
// How long a training step takes on ranks that are not there: costs of the parts (given, measured or from a trace), put
// together by the schedules' and the collectives' cost models.
//
//   step = compute + uneven stages + tensor parallel + idle + messages + gradients + parameters + optimizer
//
// Ranks lie as in a mesh pp x dp x tp, tp fastest: a tensor-parallel group is on one host where it fits, then come
// copies, then stages.
#include <cstdint>
#include <string>
#include <vector>

#include "dist/simulate.h"
#include "engine/plan.h"
#include "parallel/mesh.h"
#include "pipeline/schedule.h"
#include "report/run.h"

namespace lockstep::report {

struct Cluster {
  dist::Network network;  ///< `between` hosts, and `within` one (default: the same)
  int ranks_per_host = 8;
};

struct TrainingJob {
  engine::ModelShape model;   ///< with the seconds of its layers in a rank that has them whole
  parallel::Plan plan;        ///< without cp and ep
  int64_t micro_batch = 1;    ///< samples
  int64_t micro_batches = 1;  ///< of a step, for each copy of the model
  pipeline::Kind schedule = pipeline::Kind::one_f_one_b;
  int chunks = 0;          ///< 0: the schedule's own
  DType dtype = f32;       ///< of parameters, gradients and activations
  bool recompute = false;  ///< every block's forward again in the backward
  bool overlap = true;     ///< gradients are reduced while the backward runs (without a pipeline)
  double bucket_bytes = 25 * 1048576.;
  int64_t overlap_chunks = 0;  ///< of products with tensor parallelism; 0: as on CUDA devices
};

/// Gives the layers their seconds at so many FLOP/s, a backward so many times a forward.
void give_seconds(engine::ModelShape& model, double flops, double backward = 2);
/// Runs such a GPT of one block, on `ranks` threads at once that share the cores as ranks of a host do, and gives
/// `model` the seconds of its layers; about two seconds.
void measure_gpt(engine::ModelShape& model, int64_t micro_batch, int ranks);
/// Bytes/s that an optimizer's step reads and writes, on so many threads at once.
double measure_memory(int ranks);
/// Latency and bandwidth of ranks on this machine: a line through the times of all-reduces of several sizes.
dist::Link measure_link(int ranks);
/// From the steps of a run with traces, of micro-batches of `batch` samples of the model `traced`: gives the layers of
/// `model` their seconds by its FLOPs, and back what measure_memory() does. Error when there are none.
double measure_run(const RunFiles& run, const engine::ModelShape& traced, int64_t batch, engine::ModelShape& model);
/// From its all-reduces; Error when there are fewer than two sizes.
dist::Link link_of_traces(const std::vector<RankTrace>& traces);

struct Term {
  std::string name, how;
  double seconds = 0;  ///< of the step; what goes on beside computing is not in it
};

struct StepPrediction {
  std::vector<Term> terms;  ///< they add up to the step
  double step = 0;
  size_t bound = 0;                  ///< the largest term
  double forward = 0, backward = 0;  ///< of a micro-batch in a rank that has the whole model
  double tokens = 0;                 ///< of all ranks, each second
  double bubble = 0;                 ///< idle part of the slowest rank's time, without messages
  double gradient_bytes = 0, parameter_bytes = 0, tensor_bytes = 0,
         message_bytes = 0;  ///< that the busiest rank sends in a step
  engine::RankBytes memory;  ///< of the fullest rank, without activations
  double flops = 0;          ///< of the model in a step, all ranks, without what is computed again
};
/// memory: bytes/s that the optimizer reads and writes. Error for a layout that cannot be (more stages than layers,
/// heads or widths that do not divide, ...).
StepPrediction predict_step(const TrainingJob& job, double memory, const Cluster& cluster);

/// Seconds of a collective among `n` ranks that lie `stride` apart: a ring, or where several of them share a host,
/// rings within and between hosts.
double collective_seconds(dist::Collective collective, int n, int stride, double bytes, const Cluster& cluster);

}  // namespace lockstep::report
