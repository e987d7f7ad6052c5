#pragma once
// ThreadSanitizer clocks for the threads of kernels. A new clock makes it clear 0.8 MB, so clocks are reused, each with
// its own stack. The blocks of a stream alternate between two sets, so consecutive blocks stay concurrent; OS threads
// that end leave their clocks to others.
#include <atomic>
#include <memory>
#include <vector>

#include "tests/cudasim/fiber.h"

namespace simt {

/// The most threads of a block.
constexpr unsigned max_threads = 1024;

/// The clocks of one OS thread. Without ThreadSanitizer they do nothing.
class Clocks {
 public:
  Clocks() = default;
  ~Clocks();
  Clocks(const Clocks&) = delete;
  /// The next blocks belong to the stream with this clock. Streams have separate sets, so their kernels stay
  /// concurrent.
  void begin_grid(const Clock& stream);
  /// Switches to the other set of clocks.
  void begin_block() {
    if (first_ > 0 || live_ < few_live) first_ = max_threads - first_;
  }
  /// The clock of a thread of this block. A new clock starts after all work of the current one; reused ones must
  /// acquire it.
  const Clock& of(unsigned thread) const {
    Clock& clock = sets_.back().clocks[first_ + thread];
    if (with_tsan() && !clock) clock.create(), ++live_;
    return clock;
  }
  /// The stack of the thread, on which to start `body`.
  Fiber& stack(unsigned thread, void (*body)()) {
    auto& stack = sets_.back().stacks[first_ + thread];
    if (!stack) stack = std::make_unique<Fiber>(body, thread);
    return *stack;
  }

 private:
  struct Sets {
    const void* stream = nullptr;
    std::unique_ptr<Clock[]> clocks{new Clock[2 * max_threads]};
    std::vector<std::unique_ptr<Fiber>> stacks{2 * max_threads};
    void destroy();
  };
  struct Spare;
  static Spare& spare();

  // ThreadSanitizer allows 8128 threads, and its cost per thread grows with their number. If many kernels run at once,
  // all blocks use the first set.
  static constexpr int few_live = 1000, max_live = 5000;
  static std::atomic<int> live_;

  std::vector<Sets> sets_;  // sets of the most recent streams; the current stream is last
  unsigned first_ = 0;
};

}  // namespace simt
