// Messages between ranks. CPU tensors, and all tensors between two ranks that share a device, go through the host's
// memory; NCCL moves all other tensors. A CUDA graph can record only NCCL messages, and only if the two ranks have a
// communicator already.
#include <algorithm>

#include "dist/nccl/engine.h"
#include "tensor/ops.h"

namespace lockstep::dist {

std::vector<PointToPoint> NcclEngine::messages_of(const Call& call) {
  if (call.collective == Collective::batch) return call.batch;
  return {{call.collective == Collective::send, call.input, call.root, call.tag}};
}

void NcclEngine::device_messages(Call& call) {
  std::vector<Message> batch = call_queue.begin_messages(call);
  const std::vector<PointToPoint> all = messages_of(call);
  std::vector<std::pair<Tensor, Tensor>> arrived;  // device tensor, host copy
  const auto exchange = [&](const std::vector<size_t>& by_host, std::vector<Message> more) {
    std::vector<Tensor> copies;
    for (const size_t i : by_host) {
      const Tensor& here = copies.emplace_back(
          batch[i].is_send ? all[i].tensor.to(cpu)
                           : empty(all[i].tensor.shape(), {.dtype = all[i].tensor.dtype(), .device = cpu}));
      if (!batch[i].is_send) arrived.emplace_back(all[i].tensor, here);
      more.push_back(batch[i]);
      more.back().data = {static_cast<std::byte*>(here.raw_data()), size_t(size_in_bytes(here))};
    }
    if (!more.empty()) NativeEngine::exchange(call, more);
  };

  // The messages in `first` are exchanged before all others: those with CPU tensors, and the headers of messages that
  // may go by NCCL. by_host and by_nccl are the indices of messages with device tensors.
  std::vector<Message> first;
  std::vector<size_t> by_host, by_nccl;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto known = links_.find(batch[i].peer);
    if (all[i].tensor.device().is_cpu()) {
      first.push_back(batch[i]);
    } else if (known != links_.end() && !known->second.comm) {
      by_host.push_back(i);
    } else {
      by_nccl.push_back(i);
      if (!must_compare(batch[i].header.sequence)) continue;
      first.push_back(batch[i]);
      first.back().data = {};
    }
  }
  exchange(by_host, std::move(first));

  // Two ranks that exchange device tensors for the first time find out whether they share a device. All ranks visit
  // pairs of ranks in the same order, so that no cycle of waits arises.
  std::vector<int> peers;
  for (const size_t i : by_nccl) peers.push_back(batch[i].peer);
  std::sort(peers.begin(), peers.end(), [&](int a, int b) {
    return std::pair(std::min(a, rank), std::max(a, rank)) < std::pair(std::min(b, rank), std::max(b, rank));
  });
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  for (const int peer : peers) connect(peer, call);
  by_host.clear();
  std::vector<PointToPoint> there;
  for (const size_t i : by_nccl) {
    if (links_[all[i].peer].comm) there.push_back(all[i]);
    else by_host.push_back(i);
  }
  put_messages(call, there);
  for (const PointToPoint& p : there) {
    (p.is_send ? traffic->sent : traffic->received) += size_in_bytes(p.tensor);
    traffic->messages += p.is_send;
  }
  if (!by_host.empty()) exchange(by_host, {});
  for (const auto& [to, here] : arrived) to.copy_(here);
}

/// Passes the messages to NCCL. Each pair of ranks has a stream of its own; these streams run concurrently. The
/// messages start after the earlier work of the group's stream, and its later work waits for them.
void NcclEngine::put_messages(const Call& call, const std::vector<PointToPoint>& messages) {
  std::map<int, Link*> links;
  for (const PointToPoint& p : messages)
    if (p.tensor.numel() > 0) links[p.peer] = &links_.at(p.peer);
  if (links.empty()) return;
  Event begin(*device_);
  begin.record();
  std::vector<Communicator*> comms;
  for (const auto& [peer, link] : links) {
    comms.push_back(link->comm.get());
    if (!link->stream) continue;
    const StreamScope scope(*link->stream);
    begin.wait();
  }
  watchdog_->run(comms, call_queue.timeout_of(call), what_, [&] {
    for (const PointToPoint& p : messages) {
      if (p.tensor.numel() == 0) continue;
      const Link& link = *links[p.peer];
      const Stream& on = link.stream ? *link.stream : *stream_;
      const int peer = p.peer > rank;  // the peer's rank in the pair's communicator: 0 or 1
      if (p.is_send) send(p.tensor, peer, link.comm->handle(), on);
      else receive(p.tensor, peer, link.comm->handle(), on);
    }
  });
  for (const auto& [peer, link] : links) {
    if (!link->stream) continue;
    Event end(*device_);
    {
      const StreamScope scope(*link->stream);
      end.record();
    }
    end.wait();
  }
}

}  // namespace lockstep::dist
