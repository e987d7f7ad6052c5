#pragma once
// What a run left, and what follows from it: figures of the report page, measured beside the papers' formulas.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/trace_file.h"
#include "tensor/memory.h"

namespace lockstep::report {

/// The files of a run.
struct RunFiles {
  std::string folder;
  data::Json settings;              ///< config.json (--out), or what the trace has of it
  std::vector<data::Json> metrics;  ///< lines of metrics.jsonl (--out)
  std::vector<RankTrace> traces;    ///< rank-N.json (--trace)
  std::vector<std::string> warnings;
  const data::Json* note(const char* name) const;  ///< of the first rank that has it; or null
};
/// Error when the folder has none of them, naming what it has. A last line that was cut short is left out, with a
/// warning.
RunFiles read_run(const std::string& folder);

/// Where a rank's main thread was, in seconds of a step; parts do not overlap.
enum class Part : uint8_t { forward, backward, weights, optimizer, data, communication, other };
inline constexpr int parts = 7;
std::string_view name_of(Part part);

struct Interval {
  Part part;
  double begin, end;
  std::string name;
};

struct RankStep {
  double begin = 0, end = 0;
  std::vector<Interval> work;         ///< of the main thread, without overlap, by begin
  std::vector<Interval> collectives;  ///< of all groups, by begin
};

struct PipelineFigures {
  std::string schedule, formula;
  int stages = 1, micro_batches = 1, chunks = 1, copies = 1;
  double measured =
      0;  ///< idle part of the ranks between the first computation of a batch and the last; median of the steps
  double expected = 0;                        ///< of the formula with the measured costs
  double simulated = 0;                       ///< of the schedule itself, when it is one of ours
  double forward = 0, input = 0, weight = 0;  ///< seconds of a micro-batch in a rank, mean
};

struct Traffic {
  std::string collective;
  double calls = 0, bytes = 0, sent = 0, seconds = 0;  ///< of a rank in a step, mean
};

struct Formula {
  double bytes = 0;
  std::string text;
};

struct MemoryRow {
  std::string category;
  double measured = 0;  ///< most at any time that was noted, bytes of a rank
  std::optional<Formula> formula;
};

struct Analysis {
  std::vector<std::pair<double, double>> loss, validation;  ///< step, value
  std::vector<double> steps;                                ///< seconds of each step, of the slowest rank
  double median_step = 0;
  int64_t shown = -1;                              ///< number of the step of the timeline: one of median length
  std::map<int, RankStep> timeline;                ///< by rank
  std::map<int, std::array<double, parts>> split;  ///< seconds of a step by rank, mean without the first step
  std::optional<PipelineFigures> pipeline;
  std::vector<Traffic> traffic;  ///< by what is sent, most first
  double sent = 0;               ///< by a rank in a step
  std::optional<Formula> sent_formula;
  std::vector<MemoryRow> memory;
  std::vector<std::pair<std::string, RankTrace::Total>> operations;  ///< of all ranks, longest first
  int64_t parameters = 0;
  std::vector<std::string> warnings;
};
Analysis analyze(const RunFiles& run);

// Pieces of it.
double median(std::vector<double> values);  ///< of none: 0
/// Seconds of each step of a rank by Part, without the first, which warms up, where there are more.
std::vector<std::array<double, parts>> steps_by_part(const RankTrace& trace);
/// `events`: of the main thread in the step, sorted; they nest. What an inner one takes is its own.
std::vector<Interval> flatten(const std::vector<const Event*>& events, double begin, double end);
std::optional<PipelineFigures> measure_pipeline(const std::vector<RankTrace>& traces);

}  // namespace lockstep::report
