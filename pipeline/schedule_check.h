#pragma once
// Proves a pipeline schedule correct before any rank starts: every computation runs once and after its inputs, every
// message is sent and received, and no deadlock is possible, neither with blocking receives nor with messages on device
// streams, where sends block too. The lists of actions to check may contain any error.
#include <string>
#include <vector>

#include "pipeline/simulate.h"

namespace lockstep::pipeline {

/// The result of check_schedule().
struct PipelineCheck {
  std::vector<std::string> errors;  ///< the first few errors; each names rank, stage and micro-batch
  std::vector<int> buffers;         ///< most activations that each rank keeps, each of one micro-batch in one chunk
  int64_t messages = 0;             ///< messages between ranks per step
  int ahead = 2;                    ///< smallest power of two for DeviceStreams::ahead without a deadlock of devices
  /// True if no error was found.
  bool right() const { return errors.empty(); }
};

/// Checks the actions of all ranks. With ties, checks also that the gradients of tied weights can be exchanged.
PipelineCheck check_schedule(const PipelineSchedule& schedule, const Ties& ties = {});

/// How messages are mapped to device streams (link.h).
struct DeviceStreams {
  int ahead = 2;                   ///< messages of a link that a rank may have in flight before it waits for the oldest
  bool one_for_both_ways = false;  ///< true: a pair of ranks has one stream for both directions (a single communicator)
};
/// Simulates messages on device streams. The schedule's lists of actions must be free of errors. Returns what each
/// blocked rank waits for; empty if all ranks finish.
std::vector<std::string> check_streams(const PipelineSchedule& schedule, const Ties& ties = {},
                                       const DeviceStreams& streams = {});

}  // namespace lockstep::pipeline
