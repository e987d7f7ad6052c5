// Uneven inputs. Before each of its collectives a rank gathers from all ranks what comes next. Ranks with data report
// their phase; ranks without data report none and run the same collectives with zeros. When no rank has data left, all
// of them leave together.
//
//   rank 0   f b s  f b s  f b s  ┐               f  sync of the buffers, forward   b  backward: all buckets
//   rank 1   f b s  f b s  · z    ┘ all ended     s  optimizer step                 z  the same collectives with zeros
#include <algorithm>
#include <exception>
#include <map>

#include "base/at_end.h"
#include "dist/numbers.h"
#include "parallel/ddp.h"
#include "parallel/naive_ddp.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Ddp = DistributedDataParallel;

Ddp::Agreed Ddp::agree(Phase mine) {
  const std::vector<int64_t> phases = dist::all_gathered<int64_t>({int64_t(mine)}, group_, {.tag = "ddp join"});
  const auto count = [&](Phase phase) { return std::count(phases.begin(), phases.end(), int64_t(phase)); };
  const auto before = count(Phase::buffers), inside = count(Phase::backward);
  Agreed agreed{{}, before > 0 ? Phase::buffers : inside > 0 ? Phase::backward : Phase::none};
  std::string ended;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (phases[size_t(rank)] != int64_t(Phase::none)) agreed.active.push_back(rank);
    else ended += str(ended.empty() ? "" : ", ", group_.world_rank(rank));
  }
  LOCKSTEP_CHECK(before == 0 || inside == 0, "[join] expected all ranks to be in the same phase, got ", before,
                 " before a forward and ", inside,
                 " in a backward; all must use ddp.call() or none, and call no_sync() for the same micro-batches");
  LOCKSTEP_CHECK(!join_->throw_on_early_end || agreed.active.empty() || ended.empty(), "[join] rank ", ended,
                 " has run out of data while others still have some; give all ranks the same number of batches, or "
                 "leave out throw_on_early_end");
  if (!agreed.active.empty()) {
    join_->active = int(agreed.active.size());
    join_->authority = agreed.active[0];
  }
  return agreed;
}

void Ddp::shadow_until_all_ended() {
  for (;;) {
    const Agreed agreed = agree(Phase::none);
    if (agreed.active.empty()) break;
    if (agreed.phase == Phase::backward) shadow_backward();
    else receive_buffers(agreed.active[0]);
  }
  reducer_->forget();
  // Ranks that ended early took fewer steps, so all ranks get the parameters of a rank that took the most steps.
  // join_->active tells every rank whether some rank ended early.
  if (join_->active > 0 && join_->active < group_.size()) broadcast_module(module_, group_, join_->authority);
}

/// Runs the collectives of a backward on a rank without data. The rank contributes only the gradients that it collected
/// earlier in no_sync().
void Ddp::shadow_backward() {
  const NoGrad no_grad;
  for (Reducer::Parameter& p : reducer_->parameters)
    if (!reducer_->is_placeholder(p.variable.grad())) p.variable.clear_grad();
  answering_ = true;
  reducer_->add(true);
  answering_ = false;
  for (Reducer::Parameter& p : reducer_->parameters) p.variable.clear_grad();
}

Ddp::Join::Join(Ddp& ddp, bool divide_by_active, bool throw_on_early_end)
    : ddp_(ddp), exceptions_(std::uncaught_exceptions()) {
  LOCKSTEP_CHECK(
      !ddp.join_,
      "[join] expected no other join() of this model to be alive, got a second one; destroy the first one before");
  ddp.join_ = JoinState{.divide_by_active = divide_by_active, .throw_on_early_end = throw_on_early_end};
}

Ddp::Join::~Join() noexcept(false) {
  const AtEnd ends([this] { ddp_.join_.reset(); });
  if (std::uncaught_exceptions() == exceptions_) ddp_.shadow_until_all_ended();
}

// --- the module's buffers, which a forward may change; saving and loading its state ---

void Ddp::sync_buffers() {
  if (options_.broadcast_buffers && !module_.named_buffers().empty())
    receive_buffers(join_ ? agree(Phase::buffers).active[0] : 0);
}

void Ddp::receive_buffers(int root) {
  std::map<std::pair<int, std::string>, std::vector<Tensor>> kinds;  // one collective per dtype and device
  for (const auto& b : module_.named_buffers())
    kinds[{int(b.tensor.dtype()), str(b.tensor.device())}].push_back(b.tensor);
  for (const auto& [kind, tensors] : kinds) {
    const Packed packed(tensors);
    group_.broadcast(packed.whole, root, {.tag = "ddp buffers"});
    if (group_.rank() == root) continue;
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(packed.parts[i]);
  }
}

nn::State Ddp::state() {
  nn::State state;
  for (auto& [name, tensor] : module_.state()) state.emplace_back("module." + name, tensor);
  return state;
}
nn::LoadReport Ddp::load_state(const nn::State& state, bool strict) {
  return module_.load_state(without_wrapper(state), strict);
}

nn::State without_wrapper(const nn::State& state, const std::string& prefix) {
  const bool all = !state.empty() && std::all_of(state.begin(), state.end(),
                                                 [&](const auto& entry) { return entry.first.starts_with(prefix); });
  nn::State plain;
  for (const auto& [name, tensor] : state) plain.emplace_back(all ? name.substr(prefix.size()) : name, tensor);
  return plain;
}

}  // namespace lockstep::parallel
