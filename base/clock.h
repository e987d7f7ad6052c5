#pragma once
// A clock for durations.
#include <chrono>

namespace lockstep {

/// Seconds of a monotonic clock, since an arbitrary start.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
