#pragma once
// Gradients in flat memory, summed over micro-batches in the order of the one tree (dist/summation_tree.h).
//
//   a bucket:   │ head.bias │ head.weight        │ hidden.bias │     one flat tensor; each .grad is a view of its part
//
// Memory: 1 + log2(accumulation) copies of the gradients while micro-batches are collected, 1 after.
#include <cstdint>
#include <vector>

#include "autograd/variable.h"
#include "dist/process_group.h"
#include "dist/summation_tree.h"

namespace lockstep::parallel {

/// The gradients of some parameters of one dtype on one device.
class FlatGradients {
 public:
  /// group: sums them, so their sum lies in memory that its ranks share, where it can.
  explicit FlatGradients(std::vector<Variable> parameters, dist::ProcessGroup* group = nullptr);

  size_t size() const { return parameters_.size(); }
  int64_t numel() const { return offsets_.back(); }
  const Variable& parameter(size_t i) const { return parameters_[i]; }
  /// Part i of a flat tensor, in its parameter's shape.
  Tensor view(const Tensor& flat, size_t i) const;

  /// Moves .grad of parameter i into the flat tensor of this micro-batch and points .grad there. Without one, or when
  /// `skip` is set: zeros, .grad stays as it is, and false is given back.
  bool take(size_t i, bool skip = false);
  /// The micro-batch is complete (every part was taken): its flat tensor becomes the next leaf of the tree.
  void fold();
  /// The sum over all folded micro-batches, and over the one being taken when there is one. The tree starts anew.
  const Tensor& sum();
  /// Points .grad of parameter i at its part of the last sum().
  void point(size_t i) { parameters_[i].grad() = view(flat_, i); }

  /// Forgets what was collected: all of it, or one parameter's part.
  void discard();
  void discard(size_t i);

 private:
  void make_flat();

  std::vector<Variable> parameters_;
  dist::ProcessGroup* group_;
  std::vector<int64_t> offsets_;  // one more than parameters
  Tensor flat_;                   // of the micro-batch being taken; after sum() of all
  dist::TreeSum tree_;
};

/// Cuts parameters, in the order given, into buckets of at most `cap` bytes, the first of `first_cap`; a larger parameter gets
/// one of its own. A bucket holds one dtype and device. Gives back indices.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap);

/// Gradient accumulation in tree order for programs without DDP: the same bits as DDP on 1, 2, 4, ... ranks.
///
///   parallel::GradientAccumulator sum(model.parameters());
///   for (int m = 0; m < 4; ++m) { loss_of(m).backward(); sum.add(); }      // takes .grad away
///   sum.finish();                                                          // .grad is the sum of all four
class GradientAccumulator {
 public:
  /// Error when no parameter requires grad.
  explicit GradientAccumulator(const std::vector<Variable>& parameters);
  /// Takes the gradients of a micro-batch. A parameter without one counts as zero.
  void add();
  /// Puts the sum into .grad, where any micro-batch had a gradient. Error before the first add().
  void finish();
  /// Forgets what was added since finish().
  void discard();
  int64_t count() const { return count_; }

 private:
  std::vector<FlatGradients> buckets_;
  std::vector<std::vector<bool>> used_;
  int64_t count_ = 0;
};

}  // namespace lockstep::parallel
