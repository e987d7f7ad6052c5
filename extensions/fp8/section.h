#pragma once
// The section "fp8" of the configuration file.
#include <cstdint>
#include <string>

#include "engine/config.h"
#include "extensions/fp8/scaling.h"

namespace lockstep::engine {

/// Linear layers in 8-bit floats (scaling.h); everything else in bf16. Read it as config.section<Fp8Config>().
struct Fp8Config {
  bool enabled = false;
  std::string format = "hybrid";  ///< "hybrid": e4m3 in forward, e5m2 for gradients; "e4m3": e4m3 for both
  /// margin: scales are divided by 2^margin. amax_history_len: number of steps whose maxima determine a scale.
  int64_t margin = 0, amax_history_len = 1024;
  std::string amax_compute_algo = "max";  ///< scale from the history: "max" or "most_recent"
};

}  // namespace lockstep::engine
