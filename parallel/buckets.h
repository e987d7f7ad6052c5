#pragma once
// Dense buckets of gradients: the policy of a Reducer whose result is .grad. DDP is one that averages while backward
// runs; GradientSum is for programs without DDP, pipelines and 1-bit optimizers.
//
//   one bucket: │ head.bias │ head.weight        │ hidden.bias │     a flat tensor; each .grad is a view of it
//
// Memory: 1 + log2(n) copies of the gradients while the n micro-batches of a step are collected, 1 copy afterwards.
#include <optional>
#include <string>
#include <vector>

#include "parallel/reducer.h"

namespace lockstep::parallel {

/// Copies tensors of one dtype and device into one flat tensor, so that a single collective moves them all.
struct Packed {
  /// Copies the tensors. With an empty list, `whole` stays undefined.
  explicit Packed(const std::vector<Tensor>& tensors);
  Tensor whole;               ///< the flat tensor
  std::vector<Tensor> parts;  ///< views of `whole`, in the tensors' shapes
};

/// Groups parameters with equal kinds[i] into units of total size at most `cap`. The first unit of each kind is
/// limited to `first_cap` (0: `cap`). A parameter larger than the limit gets a unit of its own. Returns the indices of
/// each unit's parameters, in rising order; the units come in the order in which they fill up.
std::vector<std::vector<size_t>> plan_units(const std::vector<int64_t>& sizes, const std::vector<std::string>& kinds,
                                            int64_t cap, int64_t first_cap = 0);
/// Calls plan_units() with sizes in bytes. The parameters of a bucket have one dtype and device.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap);

/// Reduces gradients in buckets, and makes each .grad a view of its bucket.
class Buckets : protected Reducer::Policy {
 protected:
  /// mean: the ranks that average; null: none.
  explicit Buckets(dist::ProcessGroup* mean) : mean_(mean) {}
  void listen(const Reducer::Rules& rules, std::vector<Reducer::Parameter> parameters) {
    reducer_.emplace(static_cast<Policy&>(*this), mean_, rules, std::move(parameters));
  }
  /// Divides parameters of the reducer into buckets, in the given order. collective: all ranks do so at the same time.
  void cut(const std::vector<size_t>& order, int64_t cap, int64_t first_cap, bool collective);
  /// True for each parameter that got a gradient on some rank. The others have none, so optimizers leave them alone.
  virtual std::vector<bool> agree_on_used() = 0;

  Tensor memory(size_t bucket) override { return reducer_->units[bucket].gradients.own_memory(); }
  std::function<void()> start(size_t bucket, const Tensor& sum) override;
  void finished() override;
  void forgotten() override { sums_.assign(sums_.size(), Tensor()); }
  void ordered(const std::vector<size_t>&) override {}

  dist::ProcessGroup* const mean_;
  std::optional<Reducer> reducer_;
  std::vector<Tensor> sums_;  // of each bucket, from the start of its reduction until finished()
};

/// Sums gradients over micro-batches in tree order: bit-identical to DDP on 1, 2, 4, ... ranks. Backward sets .grad as
/// usual, and nothing is reduced meanwhile.
///
///   parallel::GradientSum sum(model.parameters());
///   for (int m = 0; m < 4; ++m) { loss_of(m).backward(); sum.add(); }      // add() takes .grad away
///   sum.finish();                                                          // .grad is the sum of all four
class GradientSum final : Buckets {
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
  void discard() { reducer_->forget(); }                                  ///< forgets what add() has taken
  int64_t count() const { return reducer_->units[0].gradients.count(); }  ///< micro-batches added since finish()

 private:
  std::vector<bool> agree_on_used() override;
  dist::ProcessGroup* const agree_;
  // The parameters that this rank, and any rank, used in the last finish() outside of a Graph's capture.
  std::vector<bool> used_here_, used_anywhere_;
};

}  // namespace lockstep::parallel
