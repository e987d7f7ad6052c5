#pragma once
// Mark: a node that records no operation, only a position in the order of recording.
#include "autograd/tape.h"

namespace lockstep {

/// A node without an operation. Its number() is above the numbers of nodes made earlier, and below those made later.
struct Mark final : Node {
  Mark() : Node("mark", 0, 0) {}
  void run(Backward&) override {}
  void release_saved() override {}
};

}  // namespace lockstep
