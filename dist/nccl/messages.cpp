// Messages between ranks: pairs that share a device, and tensors on the CPU, go through the host; the others by NCCL.
#include <algorithm>

#include "dist/nccl/engine.h"
#include "tensor/ops.h"

namespace lockstep::dist {

void NcclEngine::device_messages(Call& call) {
  std::vector<Message> batch = turns.begin_messages(call);
  std::vector<Tensor> tensors;
  if (call.collective != Collective::batch) tensors.push_back(call.input);
  for (const PointToPoint& p : call.batch) tensors.push_back(p.tensor);
  std::vector<std::pair<Tensor, Tensor>> arrived;  // on the device, and what it gets from the host
  const auto exchange = [&](const std::vector<size_t>& by_host, std::vector<Message> more) {
    std::vector<Tensor> copies;
    for (const size_t i : by_host) {
      const Tensor& here = copies.emplace_back(
          batch[i].is_send ? tensors[i].to(cpu)
                           : empty(tensors[i].shape(), {.dtype = tensors[i].dtype(), .device = cpu}));
      if (!batch[i].is_send) arrived.emplace_back(tensors[i], here);
      more.push_back(batch[i]);
      more.back().data = {static_cast<std::byte*>(here.raw_data()), size_t(size_in_bytes(here))};
    }
    if (!more.empty()) NativeEngine::exchange(call, more);
  };

  // Tensors on the CPU, those of ranks that share a device, and the headers of the others.
  std::vector<Message> first;
  std::vector<size_t> by_host, by_nccl;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto known = links_.find(batch[i].peer);
    if (tensors[i].device().is_cpu()) {
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

  // Pairs that meet for the first time find out whether they share a device. All in one order, so that no circle of
  // ranks waits.
  std::vector<int> peers;
  for (const size_t i : by_nccl) peers.push_back(batch[i].peer);
  std::sort(peers.begin(), peers.end(), [&](int a, int b) {
    return std::pair(std::min(a, rank), std::max(a, rank)) < std::pair(std::min(b, rank), std::max(b, rank));
  });
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  std::vector<Link*> links;
  by_host.clear();
  for (const int peer : peers)
    if (Link& link = connect(peer, call); link.comm) links.push_back(&link);
  std::erase_if(by_nccl, [&](size_t i) {
    const bool shared = !links_[batch[i].peer].comm;
    if (shared) by_host.push_back(i);
    return shared;
  });
  if (!links.empty()) {
    Event begin(*device_);
    begin.record();
    for (const Link* link : links) {
      if (!link->stream) continue;
      const StreamScope scope(*link->stream);
      begin.wait();
    }
    std::vector<Communicator*> comms;
    for (const Link* link : links) comms.push_back(link->comm.get());
    watchdog_->run(comms, turns.timeout_of(call), what_, [&] {
      for (const size_t i : by_nccl) {
        const Link& link = links_[batch[i].peer];
        const int64_t bytes = size_in_bytes(tensors[i]);
        if (bytes == 0) continue;
        const ncclComm_t c = link.comm->handle();
        const auto stream = static_cast<cudaStream_t>((link.stream ? *link.stream : *stream_).handle());
        const int peer = batch[i].peer > rank;  // of the two
        if (batch[i].is_send)
          check_nccl(ncclSend(tensors[i].raw_data(), size_t(bytes), ncclUint8, peer, c, stream), "ncclSend", c);
        else check_nccl(ncclRecv(tensors[i].raw_data(), size_t(bytes), ncclUint8, peer, c, stream), "ncclRecv", c);
        (batch[i].is_send ? traffic->sent : traffic->received) += bytes;
        traffic->messages += batch[i].is_send;
      }
    });
    for (const Link* link : links) {
      if (!link->stream) continue;
      Event end(*device_);
      {
        const StreamScope scope(*link->stream);
        end.record();
      }
      end.wait();
    }
  }
  if (!by_host.empty()) exchange(by_host, {});
  for (const auto& [there, here] : arrived) there.copy_(here);
}

}  // namespace lockstep::dist
