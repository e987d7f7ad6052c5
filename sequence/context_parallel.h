#pragma once
// Context parallelism: the ranks of a group share each sequence, so that activations take 1/P of the memory.
//
//   sequence::ContextParallel context(model, group, {.kind = sequence::Kind::ring});
//   auto mine = context.slice(tokens), targets = context.slice(labels);      // (B, T/P)
//   model.loss(mine, targets).backward();                                    // mean over this rank's tokens; every rank has as many
//
// Gradients are then averaged over all ranks (DDP over data x context). Attention is the one place where tokens meet; all other layers
// work on a part as they are. Unlike Megatron's sequence parallelism, which cuts up what lies between the parts of tensor parallelism.
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "nn/gpt.h"
#include "sequence/attention.h"

namespace lockstep::sequence {

enum class Kind { ulysses, ring };
std::string_view name_of(Kind kind);

struct ContextOptions {
  Kind kind = Kind::ring;
  std::optional<Order> order;  ///< default: zigzag for the ring, contiguous for Ulysses (which takes no other)
};

class ContextParallel {
 public:
  /// From here on, GPTs and attention layers below `model` take parts of sequences. Error when there is no attention layer, or one whose
  /// heads Ulysses cannot share. The model outlives this.
  ContextParallel(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group, ContextOptions options = {});
  ~ContextParallel() { set(nullptr); }
  ContextParallel(const ContextParallel&) = delete;

  /// This rank's part of x along `dim`; the model's next forwards take tokens of these positions.
  Tensor slice(const Tensor& x, int64_t dim = 1);
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

  std::shared_ptr<dist::ProcessGroup> group_;
  Order order_;
  std::shared_ptr<nn::SequencePart> part_;
  std::vector<nn::MultiHeadAttention*> layers_;
  std::vector<nn::GPT*> models_;
};

}  // namespace lockstep::sequence
