#pragma once
// Mark: a node that records no operation, only a position in the order of recording.
#include "autograd/tape.h"

namespace lockstep {

/// A Mark's number() is above the numbers of all operations recorded before it, and below those recorded later.
struct Mark final : Node {
  Mark() : Node("mark", 0, 0) {}
  void run(Backward&) override {}
  void release_saved() override {}
};

}  // namespace lockstep
