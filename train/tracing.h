#pragma once
// --trace: records the timeline of a training run on every rank.
#include "train/team.h"

namespace lockstep::train {

/// Starts the trace that the options ask for. The constructor is collective; the destructor stops the trace.
class Tracing {
 public:
  Tracing(const ParallelOptions& options, const Team& team);
  ~Tracing();
  Tracing(const Tracing&) = delete;
  /// Ends the trace of a successful run. Collective.
  void finish();

 private:
  const Team& team_;
  bool open_ = false;
};

}  // namespace lockstep::train
