#pragma once
// Aligns the traces of several ranks to one clock.
//
//   dist::start_trace("traces", dist::world());    // writes traces/rank-N.json on every rank
//   ...
//   dist::stop_trace(dist::world());
#include <cstdint>
#include <string>

#include "dist/process_group.h"

namespace lockstep::dist {

/// Offset of rank 0's monotonic clock from this machine's, and its error bound: rank 0's time is ours + offset_ns,
/// within ± error_ns.
struct ClockOffset {
  int64_t offset_ns = 0, error_ns = 0;
};
/// Collective. Each rank asks rank 0 for its time `rounds` times and keeps the reply with the shortest round trip. Rank
/// 0 read its clock somewhere within the round trip, so the estimate (its midpoint) is wrong by at most half of it
/// (Cristian, 1989).
ClockOffset measure_clock(ProcessGroup& group, int rounds = 16);
/// Like measure_clock(), but exactly 0 for a rank on rank 0's host, which shares its clock, unless the measurement
/// contradicts that (time namespaces).
ClockOffset clock_of(ProcessGroup& group);

/// Collective. Starts tracing on every rank, with the clock offsets; see trace::start(). Ranks that are threads write
/// one file each too.
void start_trace(const std::string& folder, ProcessGroup& group, int64_t limit_bytes = int64_t(1) << 30);
/// Collective. Measures the clocks again, to record their drift, and ends the trace. After a failure of the job, call
/// trace::stop() instead.
void stop_trace(ProcessGroup& group);

}  // namespace lockstep::dist
