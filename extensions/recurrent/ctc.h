#pragma once
// The loss of sequences whose target is shorter than their input.
#include <vector>

#include "autograd/ops.h"

namespace lockstep {

/// Options of ctc_loss().
struct CtcOptions {
  /// Class of the blank.
  int64_t blank = 0;
  /// True: a target that is too long for its input gives loss 0 and no gradient; false: an infinite loss.
  bool zero_infinity = false;
};
/// Connectionist temporal classification (Graves et al., 2006) of log-probabilities (T, N, C), or (T, C) for one
/// sequence. target: i64 (N, S), or all targets joined (sum of target_lengths); it never contains the blank. For
/// Reduction::mean, each sequence's loss is first divided by its target length. Computed on the CPU.
Variable ctc_loss(const Variable& log_probabilities, const Tensor& target, const std::vector<int64_t>& input_lengths,
                  const std::vector<int64_t>& target_lengths, const CtcOptions& options = {},
                  Reduction reduction = Reduction::mean);

}  // namespace lockstep
