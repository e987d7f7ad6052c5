#pragma once
// Mark: a node that records no operation, only a position in the order of recording.
#include "autograd/tape.h"

namespace lockstep {

/// A node that only takes a number: number() is above those of operations recorded earlier and below later ones.
struct Mark final : Node {
  Mark() : Node("mark", 0, 0) {}
  void run(Backward&) override {}
  void release_saved() override {}
};

}  // namespace lockstep
