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

/// Offset of rank 0's monotonic clock from this machine's clock, with an error bound: rank 0's time is this machine's
/// time + offset_ns, within ± error_ns.
struct ClockOffset {
  int64_t offset_ns = 0, error_ns = 0;
};
/// Collective. Measures the offset: each rank asks rank 0 for the time `rounds` times and keeps the reply with the
/// shortest round trip. The estimate assumes that rank 0 read its clock in the middle of this round trip, so the error
/// is at most half of the round trip (Cristian, 1989).
ClockOffset measure_clock(ProcessGroup& group, int rounds = 16);
/// Like measure_clock(), but returns exactly 0 for a rank on rank 0's host, since ranks of one host share a clock. If
/// the measurement shows another clock (in a Linux time namespace), returns the measured offset instead.
ClockOffset clock_of(ProcessGroup& group);

/// Collective. Starts tracing on every rank, with the clock offsets; see trace::start(). If ranks are threads, each
/// thread writes its own file.
void start_trace(const std::string& folder, ProcessGroup& group, int64_t limit_bytes = int64_t(1) << 30);
/// Collective. Measures the clocks again, to record their drift, and ends the trace. After a failure of the job, call
/// trace::stop() instead.
void stop_trace(ProcessGroup& group);

}  // namespace lockstep::dist
