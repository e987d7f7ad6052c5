#pragma once
// Traces of several ranks on one clock.
//
//   dist::start_trace("traces", dist::world());    // traces/rank-N.json at every rank
//   ...
//   dist::stop_trace(dist::world());
#include <cstdint>
#include <string>

#include "dist/process_group.h"

namespace lockstep::dist {

/// What added to this machine's monotonic clock gives that of rank 0, and how wrong it may be.
struct ClockOffset {
  int64_t offset_ns = 0, error_ns = 0;
};
/// Collective. Each rank asks rank 0 for the time, `rounds` times, and takes the answer that came fastest: rank 0's
/// time was read somewhere in that round trip, so its middle is wrong by half of it at most (Cristian, 1989).
ClockOffset measure_clock(ProcessGroup& group, int rounds = 16);
/// The same, and 0 for a rank on rank 0's host, which has the same clock, unless the measurement says that it has not
/// (time namespaces).
ClockOffset clock_of(ProcessGroup& group);

/// Collective; see trace::start(). Ranks that are threads have a file each too.
void start_trace(const std::string& folder, ProcessGroup& group, int64_t limit_bytes = int64_t(1) << 30);
/// Collective. Measures the clocks again, so that what they have drifted is known, and ends the trace. After a failure
/// of the job call trace::stop().
void stop_trace(ProcessGroup& group);

}  // namespace lockstep::dist
