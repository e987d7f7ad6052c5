// What DistributedDataParallel shows, and what it does with buffers, which forward changes, and with state by name.
#include <algorithm>
#include <map>

#include "parallel/ddp.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Ddp = DistributedDataParallel;

void Ddp::sync_buffers() {
  if (options_.broadcast_buffers && !module_buffers().empty())
    receive_buffers(join_ ? agree(Phase::buffers).active[0] : 0);
}

std::vector<Tensor> Ddp::module_buffers() const {
  std::vector<Tensor> all;
  for (const auto& b : module_.named_buffers()) all.push_back(b.tensor);
  return all;
}

void Ddp::receive_buffers(int root) {
  std::map<std::pair<int, std::string>, std::vector<Tensor>> kinds;  // one collective for each dtype and device
  for (const Tensor& b : module_buffers()) kinds[{int(b.dtype()), str(b.device())}].push_back(b);
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

std::vector<std::vector<std::string>> Ddp::buckets() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) names.push_back(bucket.names);
  return names;
}

}  // namespace lockstep::parallel
