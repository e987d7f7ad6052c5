#pragma once
// Flat memory for gradients, which are summed over micro-batches in the fixed tree order of dist/summation_tree.h.
//
//   one bucket: │ head.bias │ head.weight        │ hidden.bias │     a flat tensor; each .grad is copied to its place
//
// Memory: 1 + log2(n) copies of the gradients while the n micro-batches of a step are collected, 1 copy afterwards.
#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/variable.h"
#include "dist/process_group.h"
#include "dist/summation_tree.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

/// Copies tensors of one dtype and device into one flat tensor, so that a single collective moves them all.
struct Packed {
  /// Copies the tensors. With an empty list, `whole` stays undefined.
  explicit Packed(const std::vector<Tensor>& tensors);
  Tensor whole;               ///< the flat tensor
  std::vector<Tensor> parts;  ///< views of `whole`, in the tensors' shapes
};

/// The gradients of some parameters of one dtype and device, in one flat tensor.
class FlatGradients {
 public:
  /// The layout of the flat tensor: where each parameter begins, the total number of elements, dtype and device. Gaps
  /// between parameters hold zeros.
  struct Offsets {
    std::vector<int64_t> offsets;
    int64_t whole = 0;
    TensorOptions options = {};
  };
  FlatGradients() = default;  ///< an object without parameters
  /// group: the ranks over which the gradients are summed. With a group, own_memory() gives a buffer that the other
  /// ranks can read (ProcessGroup::shared_empty()). Without a layout the parameters lie one after another.
  explicit FlatGradients(std::vector<Variable> parameters, dist::ProcessGroup* group = nullptr,
                         std::optional<Offsets> layout = {});

  size_t size() const { return parameters_.size(); }                    ///< number of parameters
  int64_t numel() const { return layout_.whole; }                       ///< elements of the flat tensor, gaps included
  int64_t count() const { return tree_.count(); }                       ///< number of micro-batches folded so far
  const Variable& parameter(size_t i) const { return parameters_[i]; }  ///< parameter number i
  /// Parameter i's part of a flat tensor, in the parameter's shape.
  Tensor view(const Tensor& flat, size_t i) const;

  /// Lets the next own_memory() return the memory of parameter i's gradient, which saves a copy. Has no effect unless
  /// parameter i is the only one, no other rank takes part, and the gradient is dense and held by nobody else.
  void offer(size_t i);
  /// Returns memory for one micro-batch: the gradient given to offer() if there is one. Otherwise the first micro-batch
  /// gets a buffer that is kept between steps and in which the sum is formed. Later micro-batches get new memory.
  Tensor own_memory();
  /// Begins a micro-batch whose flat tensor is `memory` (numel() elements), and zeroes the gaps in it.
  void open(Tensor memory);
  bool is_open() const { return flat_.defined(); }  ///< true if a micro-batch has begun and is not folded yet
  /// The flat tensor of the current micro-batch.
  const Tensor& flat() const { return flat_; }
  /// Copies .grad of parameter i into the flat tensor, makes .grad a view of the copy, and returns true. Without a
  /// gradient, or with `skip`, writes zeros, leaves .grad alone and returns false. If no micro-batch is open, calls
  /// open(own_memory()) first.
  bool take(size_t i, bool skip = false);
  /// Ends a micro-batch after take() of every parameter: its flat tensor becomes the next leaf of the summation tree.
  void fold();
  /// Returns the sum over all folded micro-batches and the current one, and forgets all of them.
  Tensor sum();

  /// discard() forgets all collected gradients. discard(i) sets those of parameter i in folded micro-batches to 0.
  void discard();
  void discard(size_t i);

 private:
  std::vector<Variable> parameters_;
  dist::ProcessGroup* group_ = nullptr;
  Offsets layout_;
  DType dtype_ = f32;  // dtype of the parameters
  Tensor buffer_;      // memory that is kept between steps
  Tensor offered_;     // a gradient that may serve as memory, see offer()
  Tensor flat_;        // gradients of the current micro-batch
  dist::TreeSum tree_;
};

/// Groups parameters with equal kinds[i] into units of total size at most `cap`. The first unit of each kind is
/// limited to `first_cap` (0: `cap`). A parameter larger than the limit gets a unit of its own. Returns the indices of
/// each unit's parameters, in rising order; the units come in the order in which they fill up.
std::vector<std::vector<size_t>> plan_units(const std::vector<int64_t>& sizes, const std::vector<std::string>& kinds,
                                            int64_t cap, int64_t first_cap = 0);
/// Calls plan_units() with sizes in bytes. The parameters of a bucket have one dtype and device.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap);

/// Sums gradients over micro-batches in tree order, without hooks: backward sets .grad as usual, and add() collects it.
/// For programs without DDP (bit-identical to DDP on 1, 2, 4, ... ranks), for pipelines, and for code that must not
/// reduce during backward.
///
///   parallel::GradientAccumulator sum(model.parameters());
///   for (int m = 0; m < 4; ++m) { loss_of(m).backward(); sum.add(); }      // add() takes .grad away
///   sum.finish();                                                          // .grad is the sum of all four
class GradientAccumulator {
 public:
  /// Error if no parameter requires grad. With `group`, finish() averages over its ranks, bucket by bucket.
  explicit GradientAccumulator(const std::vector<Variable>& parameters, dist::ProcessGroup* group = nullptr);
  /// Takes the gradients of one micro-batch. A missing gradient counts as zero. Error for a parameter that was frozen
  /// in the constructor and requires grad now.
  void add();
  /// Puts the sum into .grad of every parameter that had a gradient in some micro-batch on this rank or, with `agree`,
  /// on any rank of that group. Error if there was no add() since the last finish(). While a Graph is captured, the
  /// parameters with a gradient must be the same as in the previous sum.
  void finish(dist::ProcessGroup* agree = nullptr);
  /// Forgets the gradients added since the last finish().
  void discard();
  int64_t count() const { return count_; }  ///< micro-batches added since finish()

 private:
  std::vector<FlatGradients> buckets_;
  std::vector<bool> agree_on_used(dist::ProcessGroup* agree);
  std::vector<Variable> frozen_;
  std::vector<bool> used_;  // for each parameter of the buckets, in order: true if it got a gradient since finish()
  // The parameters that had a gradient on this rank, and on any rank, in the last finish() outside a Graph's capture.
  std::vector<bool> used_here_, used_anywhere_;
  dist::ProcessGroup* group_;
  int64_t count_ = 0;
};

}  // namespace lockstep::parallel
