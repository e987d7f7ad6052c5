#pragma once
// Context parallelism: the ranks of a group share each sequence, so that activations take 1/P of the memory.
//
//   sequence::ContextParallel context(model, group, {.kind = sequence::Kind::ring});
//   auto mine = context.slice(tokens), targets = context.slice(labels);      // (B, T/P)
//   model.loss(mine, targets).backward();                                    // mean over this rank's tokens; every
//   rank has as many
//
// Gradients are then averaged over all ranks (DDP over data x context; parallel::Mesh::copies()). Attention is the one
// place where tokens meet; all other layers work on a part as they are. Unlike Megatron's sequence parallelism, which
// cuts up what lies between the parts of tensor parallelism.
#include <memory>
#include <optional>
#include <string_view>

#include "nn/attention.h"
#include "parallel/sequence/attention.h"

namespace lockstep::sequence {

enum class Kind { ulysses, ring };
std::string_view name_of(Kind kind);

struct ContextOptions {
  Kind kind = Kind::ring;
  std::optional<Order> order = {};  ///< default: zigzag for the ring, contiguous for Ulysses (which takes no other)
  Order order_or_default() const { return order.value_or(kind == Kind::ring ? Order::zigzag : Order::contiguous); }
};

/// From here on, modules below `model` take parts of sequences (nn::Module::share_sequence()), in a pipeline's stages
/// too; slice() of plan.h cuts. Error when none attends to other tokens, or one whose heads Ulysses cannot share.
std::shared_ptr<nn::SequencePart> share_sequences(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group,
                                                  ContextOptions options = {});

/// The same for as long as this lives. The model outlives it.
class ContextParallel {
 public:
  ContextParallel(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group, ContextOptions options = {});
  ~ContextParallel() { set(nullptr); }
  ContextParallel(const ContextParallel&) = delete;

  /// This rank's part of x along `dim`.
  Tensor slice(const Tensor& x, int64_t dim = 1) const {
    return sequence::slice(x, dim, group_->size(), group_->rank(), order_);
  }
  Order order() const { return order_; }
  dist::ProcessGroup& group() const { return *group_; }

  /// While this lives, the model takes whole sequences again, each rank its own: evaluation, generation.
  class Whole {
   public:
    explicit Whole(ContextParallel& context) : context_(context) { context_.set(nullptr); }
    ~Whole() { context_.set(context_.part_); }
    Whole(const Whole&) = delete;

   private:
    ContextParallel& context_;
  };
  [[nodiscard]] Whole whole() { return Whole(*this); }

 private:
  void set(const std::shared_ptr<nn::SequencePart>& part);

  nn::Module& model_;
  std::shared_ptr<dist::ProcessGroup> group_;
  Order order_;
  std::shared_ptr<nn::SequencePart> part_;
};

}  // namespace lockstep::sequence
