#pragma once
// A Reducer whose caller hands it the gradients: for programs without DDP, for pipelines, and for 1-bit optimizers.
//
// Memory: 1 + log2(n) copies of the gradients while the n micro-batches of a step are collected, then 1 copy in .grad.
#include <optional>
#include <vector>

#include "parallel/reducer.h"

namespace lockstep::parallel {

/// Sums gradients over micro-batches in tree order. The sum is bit-identical to DDP's on 1, 2, 4, ... ranks. Backward
/// sets .grad as usual, and no rank communicates during backward.
///
///   parallel::GradientSum sum(model.parameters());
///   for (int m = 0; m < 4; ++m) { loss_of(m).backward(); sum.add(); }      // add() takes .grad away
///   sum.finish();                                                          // .grad is the sum of all four
class GradientSum final : Reducer::Policy {
 public:
  /// Error if no parameter requires grad. With `mean`, finish() averages over its ranks, bucket by bucket. With
  /// `agree`, a parameter counts as used if any rank of that group has used it.
  explicit GradientSum(const std::vector<Variable>& parameters, dist::ProcessGroup* mean = nullptr,
                       dist::ProcessGroup* agree = nullptr);
  /// Takes the gradients of one micro-batch. A missing gradient counts as zero. Error for a parameter that was frozen
  /// in the constructor and requires grad now.
  void add() { reducer_->add(false); }
  /// Puts the sum into .grad of every parameter that was used in some micro-batch. Error if there was no add() since
  /// the last finish(). While a Graph is captured, the same parameters must be used as in the previous sum.
  void finish();
  void discard() { reducer_->forget(); }                              ///< forgets what add() has taken
  int64_t count() const { return reducer_->buckets[0].sum.count(); }  ///< micro-batches added since finish()

 private:
  std::function<void()> start(size_t bucket, const Tensor& sum) override;
  std::vector<bool> used() override;

  dist::ProcessGroup *const mean_, *const agree_;
  std::optional<Reducer> reducer_;
  // At the last finish() outside of a Graph's capture: the parameters that this rank, or any rank of agree_, had used.
  std::vector<bool> used_here_, used_anywhere_;
};

}  // namespace lockstep::parallel
