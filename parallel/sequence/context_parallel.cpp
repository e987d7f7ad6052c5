// Context parallelism in the attention modules of a model. See context_parallel.h.
#include "parallel/sequence/context_parallel.h"

#include <map>
#include <mutex>

#include "parallel/sequence/attention.h"

namespace lockstep::sequence {
namespace {

/// Positions of this rank's tokens. Positions on a device are cached for each sequence length, because a step that is
/// captured in a graph (tensor/graph.h) cannot copy from the host.
class Positions {
 public:
  Positions(int ranks, int rank, TokenOrder order) : ranks_(ranks), rank_(rank), order_(order) {}
  Tensor of(int64_t tokens) {
    const std::lock_guard lock(mutex_);
    const auto known = kept_.find(tokens);
    return known == kept_.end() ? positions(tokens * ranks_, ranks_, rank_, order_) : known->second;
  }
  void keep(int64_t tokens, Device device) {
    const std::lock_guard lock(mutex_);
    if (device.is_cpu() || (kept_.contains(tokens) && kept_.at(tokens).device() == device)) return;
    if (kept_.size() >= limit) kept_.clear();
    kept_[tokens] = positions(tokens * ranks_, ranks_, rank_, order_).to(device);
  }

 private:
  static constexpr size_t limit = 16;  // cached lengths
  const int ranks_, rank_;
  const TokenOrder order_;
  std::mutex mutex_;  // replicas of a model may run in several threads
  std::map<int64_t, Tensor> kept_;
};

}  // namespace

std::string_view name_of(ContextKind kind) { return kind == ContextKind::ring ? "ring" : "ulysses"; }

std::shared_ptr<nn::SequencePart> share_sequences(nn::Module& model, std::shared_ptr<dist::ProcessGroup> group,
                                                  ContextOptions options) {
  LOCKSTEP_CHECK(group, "[ContextParallel] expected a process group, got none; pass one to share_sequences()");
  const TokenOrder order = options.order_or_default();
  const bool ring = options.kind == ContextKind::ring;
  LOCKSTEP_CHECK(ring || order == TokenOrder::contiguous,
                 "[ContextParallel] Ulysses joins a sequence in the order of ranks: expected contiguous order, got ",
                 name_of(order), "; leave out order, or use ring");
  const auto part = std::make_shared<nn::SequencePart>();
  part->ranks = group->size();
  const auto positions = std::make_shared<Positions>(group->size(), group->rank(), order);
  part->positions = [positions](int64_t tokens) { return positions->of(tokens); };
  part->attend = [=](const Variable& q, const Variable& k, const Variable& v, const AttentionArgs& args) {
    if (q.dim() == 4) positions->keep(q.size(2), q.device());
    return ring ? ring_attention(q, k, v, args, group, order) : ulysses_attention(q, k, v, args, group);
  };
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
      refuse(name, ": Ulysses expected a number of heads divisible by the ", group->size(), " ranks, got ", heads,
             "; use ring, or as many ranks as divide them");
    attends |= heads > 0;
  }
  if (!attends)
    refuse("expected a model in which tokens attend to others, got none in ", model.kind(),
           "; add attention layers, or leave out context parallelism");
  return part;
}

void take_sequences(nn::Module& model, const std::shared_ptr<nn::SequencePart>& part) {
  model.apply([&](nn::Module& module) { module.share_sequence(part); });
}

}  // namespace lockstep::sequence
