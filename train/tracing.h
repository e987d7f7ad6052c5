#pragma once
// --trace: the timeline of a training run, of every rank.
#include "train/team.h"

namespace lockstep::train {

/// Starts the trace that the options ask for (collective); ends it when it goes.
class Tracing {
 public:
  Tracing(const ParallelOptions& options, const Team& team);
  ~Tracing();
  Tracing(const Tracing&) = delete;
  /// Collective: at the end of a run that went well.
  void finish();

 private:
  const Team& team_;
  bool open_ = false;
};

}  // namespace lockstep::train
