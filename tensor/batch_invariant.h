#pragma once
// Products whose rows do not depend on each other's number, for inference. See docs/generation.md.
#include <utility>

namespace lockstep {

/// While it lives, matrix products of this thread give each row of the left operand the bits that it has beside any
/// other rows. The CPU's products always do. On CUDA devices one algorithm serves every number of rows, and none cuts
/// the sums; without the scope cuBLASLt chooses for each number of rows, which is faster and has other bits.
class BatchInvariant {
 public:
  explicit BatchInvariant(bool enabled = true) : before_(std::exchange(current_, enabled)) {}
  ~BatchInvariant() { current_ = before_; }
  BatchInvariant(const BatchInvariant&) = delete;
  static bool is_on() { return current_; }  ///< True inside a scope of this thread.

 private:
  static inline thread_local bool current_ = false;
  const bool before_;
};

}  // namespace lockstep
