#pragma once
// Products whose rows do not depend on each other's number, for inference. See docs/generation.md.

namespace lockstep {

/// While it lives, matrix products of this thread give each row of the left operand the bits that it has beside any
/// other rows. The CPU's products always do. On CUDA devices one algorithm serves every number of rows, and none cuts
/// the sums; without the scope cuBLASLt chooses for each number of rows, which is faster and has other bits.
class BatchInvariant {
 public:
  explicit BatchInvariant(bool enabled = true);
  ~BatchInvariant();
  BatchInvariant(const BatchInvariant&) = delete;

 private:
  bool before_;
};
/// True inside a BatchInvariant scope of this thread.
bool batch_invariant();

}  // namespace lockstep
