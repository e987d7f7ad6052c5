#pragma once
// Random numbers for a piece of a program, after which those of the rest go on as if it had drawn none.
#include "tensor/random.h"

namespace lockstep {

class RandomScope {
 public:
  RandomScope() = default;
  /// From this state on.
  explicit RandomScope(const RandomState& state) { set_random_state(state); }
  ~RandomScope() { set_random_state(before_); }
  RandomScope(const RandomScope&) = delete;

 private:
  const RandomState before_ = random_state();
};

/// 0, 1, ... since this thread's manual_seed(): for what keeps a stream of its own under the seed.
uint64_t next_stream();

}  // namespace lockstep
