#pragma once
// How long something takes.
#include <chrono>

namespace lockstep {

/// Of a clock that only goes on.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
