#pragma once
// A place on the tape without an operation.
#include "autograd/tape.h"

namespace lockstep {

/// Takes a number: what is recorded afterwards has a higher one.
struct Mark final : Node {
  Mark() : Node("mark", 0, 0) {}
  void run(Backward&) override {}
  void release_saved() override {}
};

}  // namespace lockstep
