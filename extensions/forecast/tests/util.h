#pragma once
// Artificial traces with chosen times.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "pipeline/simulate.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "trace/trace.h"

namespace testing {

namespace fs = std::filesystem;
namespace trace = lockstep::trace;
using trace::Category;

/// The beginning of all traces in nanoseconds of the clock.
constexpr int64_t zero_ns = 1'000'000'000'000;
/// The clock's time `seconds` after that.
inline int64_t ns(double seconds) { return zero_ns + int64_t(seconds * 1e9 + 0.5); }
/// Records an event from `begin` to `end` (seconds after the beginning).
inline void put(std::string_view name, Category category, double begin, double end, trace::Args args = {},
                const trace::Track* row = nullptr) {
  trace::record(name, category, ns(begin), ns(end), args, row);
}
/// Writes the trace of a rank, with the events that fn() records.
template <class Fn> void traced(const TempDir& folder, int rank, int ranks, const Fn& fn, int64_t run = 7) {
  trace::start(folder.path, {.rank = rank, .ranks = ranks, .zero_ns = zero_ns, .run = run});
  fn();
  trace::stop();
}

/// Writes the traces of a simulated pipeline: `batches` batches of this schedule, with a second before and after each.
inline void traced_pipeline(const TempDir& folder, const lockstep::pipeline::PipelineRequest& request,
                            const lockstep::pipeline::StageCosts& costs, int batches) {
  using namespace lockstep::pipeline;
  const PipelineSchedule schedule = make_schedule(request);
  const Simulation run = simulate(schedule, costs);
  for (int rank = 0; rank < request.stages; ++rank) {
    traced(folder, rank, request.stages, [&] {
      for (int b = 0; b < batches; ++b) {
        const double at = b * (run.seconds + 2) + 1;
        for (const lockstep::pipeline::TimedAction& slot : run.ranks[size_t(rank)])
          put(std::string(name_of(slot.action.what)) + " " + std::to_string(slot.action.micro_batch),
              Category::pipeline, at + slot.start, at + slot.end);
        put("train_batch", Category::pipeline, at, at + run.seconds,
            {{"schedule", name_of(request.kind)},
             {"stages", request.stages},
             {"micro_batches", request.micro_batches},
             {"chunks", schedule.request.chunks},
             {"copy", 0}});
        put("step " + std::to_string(b), Category::step, at - 1, at + run.seconds + 1, {{"step", b}});
      }
    });
  }
}

}  // namespace testing
