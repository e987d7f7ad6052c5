#include "parallel/sequence/context_parallel.h"

namespace lockstep::sequence {

std::string_view name_of(Kind kind) { return kind == Kind::ring ? "ring" : "ulysses"; }

std::shared_ptr<nn::SequencePart> share_sequences(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group,
                                                  ContextOptions options) {
  LOCKSTEP_CHECK(group, "[ContextParallel] expected a process group, got none");
  const Order order = options.order_or_default();
  const bool ring = options.kind == Kind::ring;
  LOCKSTEP_CHECK(
      ring || order == Order::contiguous,
      "[ContextParallel] Ulysses puts a sequence together in the order of the ranks: expected contiguous, got ",
      name_of(order));
  const auto part = std::make_shared<nn::SequencePart>();
  part->ranks = group->size();
  part->positions = [ranks = group->size(), rank = group->rank(), order](int64_t tokens) {
    return positions(tokens * ranks, ranks, rank, order);
  };
  if (ring) part->attend = [group, order](const auto&... x) { return ring_attention(x..., group, order); };
  else part->attend = [group](const auto&... x) { return ulysses_attention(x..., group); };
  bool attends = false;
  const auto refuse = [&](const auto&... message) {
    take_sequences(model);
    fail(str("[ContextParallel] ", message...));
  };
  for (const auto& [name, module] : model.named_modules()) {
    int64_t heads = 0;
    try {
      heads = module->share_sequence(part);
    } catch (const Error& error) { refuse(name, ": ", error.what()); }
    if (!ring && heads % group->size() != 0)
      refuse(name, ": Ulysses expected heads that divide by the ", group->size(), " ranks, got ", heads,
             "; use ring, or as many ranks as divide them");
    attends |= heads > 0;
  }
  if (!attends) refuse("expected a model in which tokens attend to others, got none in ", model.kind());
  return part;
}

void take_sequences(nn::Module& model, const std::shared_ptr<nn::SequencePart>& part) {
  model.apply([&](nn::Module& module) { module.share_sequence(part); });
}

}  // namespace lockstep::sequence
