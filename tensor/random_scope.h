#pragma once
// RandomScope: random numbers for a part of a program, without effect on the numbers drawn after it.
#include "tensor/random.h"

namespace lockstep {

/// Restores this thread's generator state in its destructor.
class RandomScope {
 public:
  RandomScope() = default;
  /// Sets the generator to this state.
  explicit RandomScope(const RandomState& state) { set_random_state(state); }
  ~RandomScope() { set_random_state(before_); }
  RandomScope(const RandomScope&) = delete;

 private:
  const RandomState before_ = random_state();
};

/// Returns 0, 1, 2, ... in successive calls by this thread, from 0 again after manual_seed(). Code that needs a random
/// stream of its own can use the stream with this number.
uint64_t next_stream();

}  // namespace lockstep
