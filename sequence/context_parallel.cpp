#include "sequence/context_parallel.h"

namespace lockstep::sequence {

std::string_view name_of(Kind kind) { return kind == Kind::ring ? "ring" : "ulysses"; }

namespace {

void set_part(nn::Module& model, const std::shared_ptr<nn::SequencePart>& part) {
  model.apply([&](nn::Module& module) {
    if (auto* gpt = dynamic_cast<nn::GPT*>(&module)) gpt->part = part;
    if (auto* layer = dynamic_cast<nn::MultiHeadAttention*>(&module)) layer->part = part;
  });
}

}  // namespace

std::shared_ptr<nn::SequencePart> share_sequences(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group, ContextOptions options) {
  LOCKSTEP_CHECK(group, "[ContextParallel] expected a process group, got none");
  const Order order = options.order_or_default();
  const bool ring = options.kind == Kind::ring;
  LOCKSTEP_CHECK(ring || order == Order::contiguous, "[ContextParallel] Ulysses puts a sequence together in the order of the ranks: expected contiguous, got ",
                 name_of(order));
  bool attends = false;
  for (const auto& [name, module] : model.named_modules()) {
    const auto* layer = dynamic_cast<nn::MultiHeadAttention*>(module);
    if (!layer) continue;
    LOCKSTEP_CHECK(ring || layer->o.heads % group->size() == 0, "[ContextParallel] ", name, ": Ulysses expected heads that divide by the ",
                   group->size(), " ranks, got ", layer->o.heads, "; use ring, or as many ranks as divide them");
    attends = true;
  }
  LOCKSTEP_CHECK(attends, "[ContextParallel] expected a model with MultiHeadAttention, got none in ", model.kind());
  const auto part = std::make_shared<nn::SequencePart>();
  part->ranks = group->size();
  part->positions = [ranks = group->size(), rank = group->rank(), order](int64_t tokens) { return positions(tokens * ranks, ranks, rank, order); };
  if (ring) part->attend = [group, order](const auto&... x) { return ring_attention(x..., group, order); };
  else part->attend = [group](const auto&... x) { return ulysses_attention(x..., group); };
  set_part(model, part);
  return part;
}

ContextParallel::ContextParallel(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group, ContextOptions options)
    : model_(model), group_(std::move(group)), order_(options.order_or_default()), part_(share_sequences(model, group_, options)) {}

void ContextParallel::set(const std::shared_ptr<nn::SequencePart>& part) { set_part(model_, part); }

}  // namespace lockstep::sequence
