#include "sequence/context_parallel.h"

namespace lockstep::sequence {

std::string_view name_of(Kind kind) { return kind == Kind::ring ? "ring" : "ulysses"; }

ContextParallel::ContextParallel(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group, ContextOptions options)
    : group_(std::move(group)),
      order_(options.order.value_or(options.kind == Kind::ring ? Order::zigzag : Order::contiguous)),
      part_(std::make_shared<nn::SequencePart>()) {
  LOCKSTEP_CHECK(group_, "[ContextParallel] expected a process group, got none");
  LOCKSTEP_CHECK(options.kind == Kind::ring || order_ == Order::contiguous,
                 "[ContextParallel] Ulysses puts a sequence together in the order of the ranks: expected contiguous, got ",
                 sequence::name_of(order_));
  for (const auto& [name, module] : model.named_modules()) {
    if (auto* gpt = dynamic_cast<nn::GPT*>(module)) models_.push_back(gpt);
    auto* layer = dynamic_cast<nn::MultiHeadAttention*>(module);
    if (!layer) continue;
    LOCKSTEP_CHECK(options.kind == Kind::ring || layer->o.heads % group_->size() == 0, "[ContextParallel] ", name,
                   ": Ulysses expected heads that divide by the ", group_->size(), " ranks, got ", layer->o.heads,
                   "; use ring, or as many ranks as divide them");
    layers_.push_back(layer);
  }
  LOCKSTEP_CHECK(!layers_.empty(), "[ContextParallel] expected a model with MultiHeadAttention, got none in ", model.kind());
  part_->positions = empty({0}, {.dtype = i64});
  if (options.kind == Kind::ring) part_->attend = [group = group_, order = order_](const auto&... x) { return ring_attention(x..., group, order); };
  else part_->attend = [group = group_](const auto&... x) { return ulysses_attention(x..., group); };
  set(part_);
}

Tensor ContextParallel::slice(const Tensor& x, int64_t dim) {
  const Tensor where = positions(x.size(dim), group_->size(), group_->rank(), order_).to(x.device());
  part_->positions = where;
  return index_select(x, dim, where);
}

void ContextParallel::set(const std::shared_ptr<nn::SequencePart>& part) {
  for (auto* layer : layers_) layer->part = part;
  for (auto* model : models_) model->part = part;
}

}  // namespace lockstep::sequence
