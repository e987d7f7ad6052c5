#pragma once
// Context parallelism: the P ranks of a group share each sequence of T tokens, so that activations take 1/P of the
// memory.
//
//   sequence::share_sequences(model, group, {.kind = sequence::ContextKind::ring});
//   const auto mine = [&](const Tensor& x) { return sequence::slice(x, 1, ranks, rank, TokenOrder::zigzag); };
//   model.loss(mine(tokens), mine(labels)).backward();          // mean over this rank's tokens, T/P on every rank
//
// Gradients are then averaged over all ranks (DDP over data x context: Mesh::replicas()). Only attention mixes
// tokens; all other layers work on a part unchanged. Megatron's sequence parallelism (parallel/tensor_parallel/) is
// different: it cuts the activations between tensor-parallel layers.
#include <memory>
#include <optional>
#include <string_view>

#include "dist/process_group.h"
#include "nn/attention.h"
#include "parallel/sequence/plan.h"

namespace lockstep::sequence {

/// The two kinds of attention, see attention.h.
enum class ContextKind { ulysses, ring };
std::string_view name_of(ContextKind kind);  ///< "ulysses" or "ring"

/// Options of share_sequences().
struct ContextOptions {
  ContextKind kind = ContextKind::ring;
  std::optional<TokenOrder> order = {};  ///< default: zigzag for the ring; Ulysses takes only contiguous
  /// `order`, or the default for `kind`.
  TokenOrder order_or_default() const {
    return order.value_or(kind == ContextKind::ring ? TokenOrder::zigzag : TokenOrder::contiguous);
  }
};

/// Makes the attention modules below `model` work on this rank's part of each sequence (nn::Module::share_sequence()),
/// also in pipeline stages. The caller slices the inputs, by slice() of plan.h. Returns the state that the modules
/// share. Errors: the model has no attention module; Ulysses cannot divide the heads of a module.
std::shared_ptr<nn::SequencePart> share_sequences(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group,
                                                  ContextOptions options = {});
/// Switches the attention modules below `model`. With nullptr, each rank then works alone on whole sequences, as in
/// evaluation or generation. With the object that share_sequences() returned, the ranks share sequences again.
void take_sequences(nn::Module& model, const std::shared_ptr<nn::SequencePart>& part = nullptr);

}  // namespace lockstep::sequence
