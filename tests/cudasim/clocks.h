#pragma once
// The clocks of a kernel's threads. ThreadSanitizer clears 0.8 MB for each new one, so they are used again, each with a
// stack of its own: the blocks of a stream take turns with two sets, so that what one block does stays concurrent with
// what the next one does, and OS threads that end leave theirs to others.
#include <atomic>
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
  void begin_block() {
    if (turn_ > 0 || live_ < few_live) turn_ = most_threads - turn_;
  }
  /// Of a thread of this block. A new one comes after all that the current clock has done; others must acquire that.
  const Clock& of(unsigned thread) const {
    Clock& clock = sets_.back().clocks[turn_ + thread];
    if (with_tsan() && !clock) clock.create(), ++live_;
    return clock;
  }
  /// Its stack, to begin `body` on.
  Fiber& stack(unsigned thread, void (*body)()) {
    auto& stack = sets_.back().stacks[turn_ + thread];
    if (!stack) stack = std::make_unique<Fiber>(body, thread);
    return *stack;
  }

 private:
  struct Sets {
    const void* stream = nullptr;
    std::unique_ptr<Clock[]> clocks{new Clock[2 * most_threads]};
    std::vector<std::unique_ptr<Fiber>> stacks{2 * most_threads};
    void destroy();
  };
  struct Spare;
  static Spare& spare();

  // ThreadSanitizer allows 8128 threads, and what it does for one takes as long as there are others: where many kernels
  // run at once, all blocks have the first set.
  static constexpr int few_live = 1000, most_live = 5000;
  static std::atomic<int> live_;

  std::vector<Sets> sets_;  // of the streams that ran last, the last one last
  unsigned turn_ = 0;
};

}  // namespace simt
