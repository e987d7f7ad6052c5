#pragma once
// Context parallelism: the ranks of a group share each sequence, so that activations take 1/P of the memory.
//
//   sequence::share_sequences(model, group, {.kind = sequence::Kind::ring});
//   const auto mine = [&](const Tensor& x) { return sequence::slice(x, 1, ranks, rank, Order::zigzag); };  // (B, T/P)
//   model.loss(mine(tokens), mine(labels)).backward();          // mean over this rank's tokens; all have as many
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
/// They take whole sequences again, each rank its own: evaluation, generation. `part`: or what share_sequences() gave.
void take_sequences(nn::Module& model, const std::shared_ptr<nn::SequencePart>& part = nullptr);

}  // namespace lockstep::sequence
