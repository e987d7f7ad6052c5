#pragma once
// Matrix products in which a row's result does not depend on the number of rows, for inference. See
// extensions/generation/README.md.
#include <utility>

namespace lockstep {

/// While an object lives, matrix products of this thread compute each row of the left operand with the same bits,
/// however many other rows there are. Products on the CPU always do so. On CUDA devices one algorithm without split-K
/// then serves every number of rows. Without such an object, cuBLASLt chooses an algorithm for each number of rows,
/// which is faster but gives other bits.
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
