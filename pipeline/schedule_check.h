#pragma once
// Proves a pipeline schedule right before a rank starts: every computation once and in an order that can be, every
// transfer at both ends, no deadlock: neither with receives that block, nor with messages on streams of devices, where
// sends block, too. It takes any lists, which may be wrong in any way.
#include <string>
#include <vector>

#include "pipeline/simulate.h"

namespace lockstep::pipeline {

struct Check {
  std::vector<std::string> errors;  ///< the first few, each naming rank, stage and micro-batch
  std::vector<int> buffers;         ///< most activations held at once by each rank, in micro-batches of a chunk
  int64_t messages = 0;             ///< between ranks, of a step
  int ahead = 2;                    ///< of Streams: the fewest, a power of two, with which devices run it
  bool right() const { return errors.empty(); }
};

Check check_schedule(const Schedule& schedule, const Ties& ties = {});

/// How messages lie on streams (link.h).
struct Streams {
  int ahead = 2;                   ///< messages of a link that a rank has sent before the oldest has gone
  bool one_for_both_ways = false;  ///< all that goes between two ranks on one stream, as with one communicator for them
};
/// For a schedule whose lists are right: what each rank waits for when not all come to their end; empty: they do.
std::vector<std::string> check_streams(const Schedule& schedule, const Ties& ties = {}, const Streams& streams = {});

}  // namespace lockstep::pipeline
