// What DistributedDataParallel shows, and what it does with buffers, which forward changes, and with state by name.
#include <algorithm>
#include <map>

#include "parallel/ddp_impl.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Ddp = DistributedDataParallel;
using Impl = Ddp::Impl;

void Impl::sync_buffers() {
  if (options.broadcast_buffers && !module_buffers().empty())
    receive_buffers(join ? agree(Phase::buffers).active[0] : 0);
}

std::vector<Tensor> Impl::module_buffers() const {
  std::vector<Tensor> all;
  for (const auto& b : module.named_buffers())
    if (!options.ignore || !options.ignore(b.name)) all.push_back(b.tensor);
  return all;
}

void Impl::receive_buffers(int root) {
  std::map<std::pair<int, std::string>, std::vector<Tensor>> kinds;  // one collective for each dtype and device
  for (const Tensor& b : module_buffers()) kinds[{int(b.dtype()), str(b.device())}].push_back(b);
  for (const auto& [kind, tensors] : kinds) {
    std::vector<Tensor> rows;
    for (const Tensor& tensor : tensors) rows.push_back(tensor.reshape({tensor.numel()}));
    const Tensor flat = cat(rows);
    group.broadcast(flat, root, {.tag = "ddp buffers"});
    if (group.rank() == root) continue;
    int64_t at = 0;
    for (const Tensor& tensor : tensors) {
      tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.shape()));
      at += tensor.numel();
    }
  }
}

nn::State Ddp::state() {
  nn::State state;
  for (auto& [name, tensor] : impl_->module.state()) state.emplace_back("module." + name, tensor);
  return state;
}
nn::LoadReport Ddp::load_state(const nn::State& state, bool strict) {
  return impl_->module.load_state(without_wrapper(state), strict);
}

nn::State without_wrapper(const nn::State& state, const std::string& prefix, bool* stripped) {
  const bool all = !state.empty() && std::all_of(state.begin(), state.end(),
                                                 [&](const auto& entry) { return entry.first.starts_with(prefix); });
  if (stripped) *stripped = all;
  nn::State plain;
  for (const auto& [name, tensor] : state) plain.emplace_back(all ? name.substr(prefix.size()) : name, tensor);
  return plain;
}

Ddp::DistributedDataParallel(nn::Module& module, Options options, dist::ProcessGroup* group)
    : impl_(std::make_unique<Impl>(module, std::move(options), group ? *group : dist::world())) {}
Ddp::~DistributedDataParallel() = default;
nn::Module& Ddp::module() { return impl_->module; }
dist::ProcessGroup& Ddp::group() { return impl_->group; }

Ddp::NoSync::NoSync(Ddp& ddp) : ddp_(ddp) { ddp_.impl_->reducer->enter_no_sync(); }
Ddp::NoSync::~NoSync() { ddp_.impl_->reducer->leave_no_sync(); }

std::vector<std::vector<std::string>> Ddp::buckets() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : impl_->buckets) names.push_back(bucket.names);
  return names;
}

}  // namespace lockstep::parallel
