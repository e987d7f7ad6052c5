#pragma once
// Gradients in flat memory, summed over micro-batches in the order of the one tree (dist/summation_tree.h).
//
//   a unit:   │ head.bias │ head.weight        │ hidden.bias │     one flat tensor; each .grad is copied to its part
//
// Memory: 1 + log2(accumulation) copies of the gradients while micro-batches are collected, 1 after.
#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/variable.h"
#include "dist/process_group.h"
#include "dist/summation_tree.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

/// Copies of tensors of one dtype and device in one, so that one collective moves all of them.
struct Packed {
  explicit Packed(const std::vector<Tensor>& tensors);
  Tensor whole;               ///< flat; undefined: of none
  std::vector<Tensor> parts;  ///< views of it, in the tensors' shapes
};

/// The gradients of some parameters of one dtype on one device.
class FlatGradients {
 public:
  /// Where the parts lie, in how much memory of which kind. Zeros between them.
  struct Offsets {
    std::vector<int64_t> offsets;
    int64_t whole = 0;
    TensorOptions options = {};
  };
  FlatGradients() = default;  ///< of none
  /// group: sums them, so its ranks share their memory where they can. Without a layout parts lie one after another.
  explicit FlatGradients(std::vector<Variable> parameters, dist::ProcessGroup* group = nullptr,
                         std::optional<Offsets> layout = {});

  size_t size() const { return parameters_.size(); }
  int64_t numel() const { return layout_.whole; }
  int64_t count() const { return tree_.count(); }  ///< micro-batches that were folded
  const Variable& parameter(size_t i) const { return parameters_[i]; }
  /// Part i of a flat tensor, in its parameter's shape.
  Tensor view(const Tensor& flat, size_t i) const;

  /// Before own_memory(): a gradient that fills the unit, of one rank that shares with nobody, may be its memory. Then
  /// nothing is copied, and nothing is held beside gradients.
  void offer(size_t i);
  /// Memory for a micro-batch: what was offered, or of the first always the same, in which the tree makes its sums.
  Tensor own_memory();
  /// Begins a micro-batch, in `memory`.
  void open(Tensor memory);
  bool is_open() const { return flat_.defined(); }
  /// Of the micro-batch that is open.
  const Tensor& flat() const { return flat_; }
  /// Moves .grad of parameter i into the flat tensor (of own_memory(), when none is open) and points .grad there.
  /// Without one, or when `skip` is set: zeros, .grad stays as it is, and false is given back.
  bool take(size_t i, bool skip = false);
  /// The micro-batch is complete (every part was taken): its flat tensor becomes the next leaf of the tree.
  void fold();
  /// The sum over all folded micro-batches, and over the one that is open when there is one; all of it is given away.
  Tensor sum();

  /// Forgets what was collected: all of it, or one parameter's part.
  void discard();
  void discard(size_t i);

 private:
  std::vector<Variable> parameters_;
  dist::ProcessGroup* group_ = nullptr;
  Offsets layout_;
  DType dtype_ = f32;  // of the parameters
  Tensor buffer_;      // own_memory() that lasts
  Tensor offered_;
  Tensor flat_;  // of the micro-batch being taken
  dist::TreeSum tree_;
};

/// Cuts a list of parameters into units of at most `cap` together, the first of a kind of `first_cap`; a larger one
/// gets a unit of its own. A unit holds parameters of one kind. Gives back indices, each list in the order given, the
/// lists in the order in which they are full.
std::vector<std::vector<size_t>> plan_units(const std::vector<int64_t>& sizes, const std::vector<std::string>& kinds,
                                            int64_t cap, int64_t first_cap = 0);
/// The same in bytes; a bucket holds one dtype and device.
std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap);

/// Gradients that are handed in backward by backward, in tree order: for programs without DDP (the same bits as DDP on
/// 1, 2, 4, ... ranks), for pipelines, and for whoever does not want backward itself to reduce.
///
///   parallel::GradientAccumulator sum(model.parameters());
///   for (int m = 0; m < 4; ++m) { loss_of(m).backward(); sum.add(); }      // takes .grad away
///   sum.finish();                                                          // .grad is the sum of all four
class GradientAccumulator {
 public:
  /// Error when no parameter requires grad. group: finish() makes the mean over its ranks, in buckets.
  explicit GradientAccumulator(const std::vector<Variable>& parameters, dist::ProcessGroup* group = nullptr);
  /// Takes the gradients of a micro-batch. A parameter without one counts as zero. Error for one that was frozen when
  /// this was made.
  void add();
  /// Puts the sum into .grad, where any micro-batch (agree: of any of its ranks) had a gradient. Error before add(),
  /// and in a graph when other parameters had one than in the sum before it.
  void finish(dist::ProcessGroup* agree = nullptr);
  /// Forgets what was added since finish().
  void discard();
  int64_t count() const { return count_; }

 private:
  std::vector<FlatGradients> buckets_;
  std::vector<bool> agree_on_used(dist::ProcessGroup* agree);
  std::vector<Variable> frozen_;
  std::vector<bool> used_;                       // of the parameters in all buckets
  std::vector<bool> used_here_, used_anywhere_;  // in the last sum that was no recording
  dist::ProcessGroup* group_;
  int64_t count_ = 0;
};

}  // namespace lockstep::parallel
