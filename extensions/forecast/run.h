#pragma once
// Reads the files of a training run and computes the numbers of the report: measurements and, for
// comparison, the results of formulas from papers.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "extensions/forecast/trace_file.h"
#include "tensor/memory.h"

namespace lockstep::report {

/// The files of a run.
struct RunFiles {
  std::string folder;
  data::Json settings;              ///< config.json or run.json (--out), or their copy in the trace
  std::vector<data::Json> metrics;  ///< the lines of metrics.jsonl, from --out, or the log in `state`
  data::Json state;                 ///< trainer_state.json of Hugging Face's layout, or null
  std::vector<RankTrace> traces;    ///< the files rank-N.json, from --trace
  std::vector<std::string> warnings;
  const data::Json* note(const char* name) const;  ///< the first rank's trace::note() of that name, or null
  /// The name of the program that trained. If no file has it: the kind of the model, or the name of the folder.
  std::string program() const;
};
/// Reads a run's folder, or a folder checkpoint-N of TrainingArguments. If the folder has no file of a run, the Error
/// lists the files that it has. An incomplete last line is left out, with a warning.
RunFiles read_run(const std::string& folder);

/// The values of a metric, in the order in which they were written.
struct Curve {
  std::string name;                               ///< "val_loss"; "expert_tokens/3" for an element of a list
  std::vector<std::pair<double, double>> points;  ///< (step, value), at least one
  bool evaluated = false;                         ///< true: measured by evaluations, as the prefix of the name says
  double last() const { return points.back().second; }  ///< the value written last
};
/// Curves of one quantity: "loss" of training and of evaluations, or the elements of a list.
struct CurveChart {
  std::string title;  ///< "loss"
  std::vector<Curve> curves;
  /// True if evaluations measured one of the curves.
  bool is_evaluated() const { return std::ranges::any_of(curves, &Curve::evaluated); }
};
/// The curves of all metrics: the loss, then what evaluations measured, then the rest. Losses are those of the trace if
/// it has more of them.
std::vector<CurveChart> curves_of(const RunFiles& run);

/// The activity of a rank's main thread. Parts do not overlap.
enum class StepPhase : uint8_t { forward, backward, weights, optimizer, data, communication, evaluation, other };
inline constexpr int parts = 8;            ///< number of StepPhases
std::string_view name_of(StepPhase part);  ///< "forward", ...

/// A stretch of time in which a rank's main thread has one kind of activity (StepPhase), in seconds.
struct Interval {
  StepPhase part;
  double begin, end;
  std::string name;
};

/// One step of one rank.
struct RankStep {
  double begin = 0, end = 0;
  std::vector<Interval> work;         ///< computations of the main thread, sorted, without overlap
  std::vector<Interval> collectives;  ///< collectives of all groups, sorted by begin
};

/// The pipeline of a run. Idle parts are fractions of the time between a batch's first and last computation.
struct PipelineFigures {
  std::string schedule, formula;
  int stages = 1, micro_batches = 1, chunks = 1, replicas = 1;
  double measured = 0;                        ///< measured idle part: the median over the batches
  double expected = 0;                        ///< idle part by the formula, with the measured costs
  double simulated = 0;                       ///< idle part by simulating the schedule, if Lockstep has it
  double forward = 0, input = 0, weight = 0;  ///< seconds per micro-batch on a rank, mean
};

/// All calls of one collective operation.
struct CollectiveTraffic {
  std::string collective;
  double calls = 0, bytes = 0, sent = 0, seconds = 0;  ///< means per rank and step
};

/// A value computed by a formula from a paper.
struct Formula {
  double bytes = 0;
  std::string text;
};

/// Memory of one category.
struct MemoryRow {
  std::string category;
  double measured = 0;  ///< highest recorded value, bytes per rank
  std::optional<Formula> formula;
};

/// The evaluations in a trace.
struct Evaluations {
  int64_t count = 0;
  double seconds = 0;  ///< of all of them, on the rank that took longest
};

/// All numbers that the report shows.
struct Analysis {
  std::vector<CurveChart> charts;                   ///< curves_of() the run
  const Curve* curve(std::string_view name) const;  ///< the curve of a metric, or null
  std::vector<double> steps;                        ///< seconds of each step on the slowest rank
  double median_step = 0;
  int64_t timeline_step = -1;                         ///< step shown in the timeline: one of median length
  std::map<int, RankStep> timeline;                   ///< one step of each rank
  std::map<int, std::array<double, parts>> split;     ///< seconds per step by rank, mean without the first step
  std::vector<std::pair<std::string, double>> waits;  ///< seconds per rank and step, by name, longest first
  Evaluations evaluations;
  std::optional<PipelineFigures> pipeline;
  std::vector<CollectiveTraffic> traffic;  ///< sorted by bytes sent, most first
  double sent = 0;                         ///< bytes sent per rank and step
  std::optional<Formula> sent_formula;
  std::vector<MemoryRow> memory;
  std::vector<std::pair<std::string, RankTrace::Total>> operations;  ///< over all ranks, longest first
  int64_t parameters = 0;
};
/// Computes the numbers of the report from the files of a run.
Analysis analyze(const RunFiles& run);

// Functions that analyze() calls.
double median(std::vector<double> values);  ///< 0 without values
/// Seconds by StepPhase for each step of a rank. The first step is warm-up and left out if there are more.
std::vector<std::array<double, parts>> steps_by_part(const RankTrace& trace);
/// Turns nested events of the main thread in a step, sorted by begin, into intervals without overlap: an inner event
/// takes its time from the outer one, except within an evaluation.
std::vector<Interval> flatten(const std::vector<const TraceEvent*>& events, double begin, double end);
/// Idle time and costs of a traced pipeline; none if the traces have no pipeline.
std::optional<PipelineFigures> measure_pipeline(const std::vector<RankTrace>& traces);

}  // namespace lockstep::report
