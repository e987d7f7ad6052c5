#pragma once
// Aligns the traces of several ranks to one clock, for start_trace() (process_group.h).
#include <cstdint>

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

}  // namespace lockstep::dist
