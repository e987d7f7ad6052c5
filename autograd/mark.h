#pragma once
// A node that records no operation.
#include "autograd/tape.h"

namespace lockstep {

/// Takes the next number: operations recorded later have higher ones.
struct Mark final : Node {
  Mark() : Node("mark", 0, 0) {}
  void run(Backward&) override {}
  void release_saved() override {}
};

}  // namespace lockstep
