#pragma once
// A pipeline schedule as data: a list of actions for each rank. The same lists are checked (schedule_check.h),
// simulated and drawn (simulate.h), and executed (engine.h).
//
// Vocabulary. p ranks ("stages") share the layers; a batch is m micro-batches. Each rank holds v chunks of consecutive
// layers; all p·v chunks, in the order of the model, are the virtual stages. A backward may be split into the gradient
// of the stage's input, which the previous stage waits for, and the gradient of its weights, which no other stage waits
// for.
//
//   1F1B, 4 ranks, 4 micro-batches (a column is the time of a forward; a backward takes two):
//
//   rank 0   F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 .  B1 B1 .  B2 B2 .  B3 B3       activations kept: 4
//   rank 1   .  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3 .  .        3
//   rank 2   .  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .  .  .        2
//   rank 3   .  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .  .  .        1
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/step.h"

namespace lockstep::pipeline {

/// gpipe: all forwards, then all backwards. one_f_one_b: each backward as soon as possible. interleaved: 1F1B with v
/// chunks per rank. zb_h1: split backwards fill the bubble. dualpipe_v: of p ranks, rank r holds chunks r and
/// 2p-1-r. See the files in schedules/ for papers and costs.
enum class ScheduleKind : uint8_t {
#define KIND(x) x,
#include "pipeline/schedules/kinds.def"
#undef KIND
};
/// The names of all kinds, in the order of the enumerators.
std::vector<std::string> names_of_kinds();
std::string_view name_of(ScheduleKind kind);  ///< "gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v"
/// True if `name` is the name of a kind of schedule.
bool is_kind(std::string_view name);
ScheduleKind parse_kind(
    std::string_view name);  ///< Error for an unknown name; it lists the known names and the nearest

using parallel::StepAction, parallel::Do, parallel::Lists;

/// The kind and the sizes of a schedule, from which make_schedule() makes it.
struct PipelineRequest {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1;
  int micro_batches = 1;
  int chunks = 0;  ///< chunks per rank; 0: the kind's default (2 for interleaved and dualpipe-v, else 1)
};

/// The list of actions of each rank, and the placement of the virtual stages.
struct PipelineSchedule {
  PipelineRequest request;  ///< the request, with `chunks` filled in
  Lists ranks;              ///< computations, and transfers between ranks

  /// A rank, and one of its chunks.
  struct Position {
    int rank, chunk;
  };
  /// Number of virtual stages, p·v.
  int virtual_stages() const { return request.stages * request.chunks; }
  int virtual_stage(int rank, int chunk) const;  ///< chunk·p + rank; in dualpipe-v, 2p-1-rank for chunk 1
  /// The inverse of virtual_stage().
  Position place(int virtual_stage) const;
  /// True if the virtual stage exists and another rank holds it.
  bool is_remote(int virtual_stage, int rank) const {
    return virtual_stage >= 0 && virtual_stage < virtual_stages() && place(virtual_stage).rank != rank;
  }
};

int chunks_of(const PipelineRequest& request);  ///< chunks per rank, with the default filled in
/// The reason why no schedule exists for this request, with the nearest alternative: "interleaved: expected ..., got
/// ...; use ...". Empty if a schedule exists.
std::string refusal_of(const PipelineRequest& request);
/// Makes the schedule for this request. Error with the text of refusal_of() if none exists. A pure function.
PipelineSchedule make_schedule(const PipelineRequest& request);

/// Two virtual stages that share a weight: `to` adds its gradient to the gradient of `from`.
struct TiedStages {
  int from, to;
  size_t key = 0;  ///< which weight, as the caller numbers them
};
/// All pairs of stages that share a weight.
using Ties = std::vector<TiedStages>;

/// Completes the lists of `schedule`, which may be your own, to those of a training step. Adds the draws of
/// micro-batches, the transfers between two chunks of one rank, the additions to the gradients' sums, and the tail. A
/// micro-batch whose tied gradients come from a later stage is added when the weight gradients of the next two are
/// computed, so that a rank seldom waits for them.
Lists step_of(const PipelineSchedule& schedule, const Ties& ties = {});
/// The lists of an evaluation: forwards of `micro_batches` micro-batches on the stages of `schedule`.
Lists evaluation_of(const PipelineSchedule& schedule, int micro_batches);

}  // namespace lockstep::pipeline
