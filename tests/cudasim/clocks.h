#pragma once
// The clocks of a kernel's threads. ThreadSanitizer clears 0.8 MB for each new one, so they are used again: the blocks
// of a stream take turns with two sets, so that what one block does stays concurrent with what the next one does, and
// threads that end leave theirs to others.
#include <memory>
#include <vector>

#include "tests/cudasim/fiber.h"

namespace simt {

constexpr unsigned most_threads = 1024;  // of a block

/// Those of one OS thread. Without ThreadSanitizer they do nothing.
class Clocks {
 public:
  Clocks() = default;
  ~Clocks();
  Clocks(const Clocks&) = delete;
  /// What comes is of the stream with that clock. Streams have sets of their own: their kernels stay concurrent.
  void begin_grid(const Clock& stream);
  void begin_block() { turn_ = most_threads - turn_; }
  /// Of a thread of this block. A new one comes after all that the current clock has done; others must acquire that.
  const Clock& of(unsigned thread) const {
    Clock& clock = sets_.back().clocks[turn_ + thread];
    if (!clock) clock.create();
    return clock;
  }

 private:
  struct Sets {
    const void* stream = nullptr;
    std::unique_ptr<Clock[]> clocks{new Clock[2 * most_threads]};
  };
  struct Spare;
  static Spare& spare();

  std::vector<Sets> sets_;  // of the streams that ran last, the last one last
  unsigned turn_ = 0;
};

}  // namespace simt
