#pragma once
// Collectives on tensors on CUDA devices, by NCCL: without copies through the host, and without blocking it.
//
// A group has one communicator of all its ranks, created at their first collective, and one for each pair that
// exchanges messages, so that a message involves two ranks only. All calls go to one stream of the group, in order.
// This stream waits for the caller's stream before a call, and Work::wait() makes the caller's stream wait for it. The
// messages of one exchange run concurrently.
//
// NCCL does not detect ranks that make different calls: it hangs or returns garbage. So ranks compare their calls on
// the host first: the first 100 of a group, then every 64th, and all of them with LOCKSTEP_NCCL_DEBUG=1. For messages,
// the receiver checks the sender's header. For graphs see recorded.cpp.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "dist/native_engine.h"
#include "dist/nccl/watchdog.h"
#include "dist/shard.h"

namespace lockstep::dist {

/// Ranks compare the first `compared_first` calls of a group, then every `compared_every`-th call.
constexpr uint64_t compared_first = 100, compared_every = 64;

/// Bytes of a tensor's elements.
inline int64_t size_in_bytes(const Tensor& t) { return t.numel() * size_of(t.dtype()); }

/// The engine of a group that uses NCCL for tensors on devices.
class NcclEngine final : public NativeEngine {
 public:
  /// `member`: this rank's place in the group. CUDA is not touched before the first call with tensors of a CUDA device.
  NcclEngine(std::shared_ptr<Job> job, Membership member, std::shared_ptr<Traffic> traffic)
      : NativeEngine(std::move(job), std::move(member), std::move(traffic)),
        n_(int(world_ranks.size())),
        compares_all_(environment_flag("LOCKSTEP_NCCL_DEBUG")),
        exact_(environment_flag("LOCKSTEP_NCCL_EXACT")) {}
  ~NcclEngine() override {
    call_queue.drain();  // queued calls need the communicators
    std::vector<std::shared_ptr<Communicator>> comms;
    for (const auto& [peer, link] : links_)
      if (link.comm) comms.push_back(link.comm);
    if (watchdog_) watchdog_->close(call_queue, comms);
  }

  /// "nccl", or "host" once ranks were found to share a device, so that tensors go through host memory.
  const char* moved_by() const {
    const std::lock_guard lock(mutex_);
    const bool shares = std::any_of(links_.begin(), links_.end(), [](const auto& link) { return !link.second.comm; });
    return shares ? "host" : "nccl";
  }
  /// Called on the caller's thread: keeps the call's tensors, and records the point in the caller's stream that the
  /// call must follow. Error if earlier calls used another device, or if NCCL does not support the call's algorithm.
  std::shared_ptr<DeviceWork> begin(const Call& call);
  /// Adds a call to the graph that this thread records, instead of running it (recorded.cpp). Error when the ranks have
  /// no communicator yet.
  std::shared_ptr<DeviceWork> record(Call call);
  /// Returns the calls of this group recorded since the last take_recorded(); see ProcessGroup::take_recorded().
  std::vector<std::string> take_recorded();
  void move(Call& call, uint64_t sequence) override;
  bool idle() const override { return NativeEngine::idle() && (!watchdog_ || watchdog_->idle(call_queue)); }

 private:
  static constexpr int everybody = -1;
  struct Link {
    std::shared_ptr<Communicator> comm;  // NCCL's communicator; null: ranks share a device
    std::optional<Stream> stream;        // own stream of a pair in a larger group; none: use the group's stream
  };

  void check(const Call& call);
  Algorithm algorithm_of(const Call& call) const;
  void start_graph(Call& call, uint64_t sequence);
  Link& connect(int peer, const Call& call);
  bool must_compare(uint64_t number) const {
    return compares_all_ || number <= compared_first || number % compared_every == 0;
  }
  void device_collective(Call& call, uint64_t sequence);
  void enqueue(const Call& call, Communicator& comm);
  void device_messages(Call& call);
  static std::vector<PointToPoint> messages_of(const Call& call);
  void put_messages(const Call& call, const std::vector<PointToPoint>& messages);
  void gather_parts(const Tensor& full, const Tensor& part, int root, ncclComm_t comm);
  void sum_own_part(const Call& call, Communicator& comm, const Tensor& target);
  void send(const Tensor& t, int peer, ncclComm_t comm, const Stream& on) {
    if (t.numel() > 0)
      check_nccl(ncclSend(t.raw_data(), size_t(size_in_bytes(t)), ncclUint8, peer, comm, stream(on)), "ncclSend", comm);
  }
  void send(const Tensor& t, int peer, ncclComm_t comm) { send(t, peer, comm, *stream_); }
  void receive(const Tensor& t, int peer, ncclComm_t comm, const Stream& on) {
    if (t.numel() > 0)
      check_nccl(ncclRecv(t.raw_data(), size_t(size_in_bytes(t)), ncclUint8, peer, comm, stream(on)), "ncclRecv", comm);
  }
  void receive(const Tensor& t, int peer, ncclComm_t comm) { receive(t, peer, comm, *stream_); }
  static cudaStream_t stream(const Stream& of) { return static_cast<cudaStream_t>(of.handle()); }
  cudaStream_t stream() const { return stream(*stream_); }
  Tensor part_of(const Tensor& flat, int of) const {
    const Range r = shard_range(flat.numel(), n_, of);
    return flat.narrow(0, r.begin, r.size());
  }
  void together(Communicator& comm, const Call& call, const std::function<void(ncclComm_t)>& calls) {
    watchdog_->run({&comm}, call_queue.timeout_of(call), what_, [&] { calls(comm.handle()); });
  }

  const int n_;
  const bool compares_all_, exact_;
  mutable std::mutex mutex_;  // protects members that other threads read
  std::optional<Device> device_;
  std::map<int, Link> links_;
  // Used only by the thread that runs the group's current call
  std::shared_ptr<Watchdog> watchdog_;
  std::optional<Stream> stream_;
  uint64_t collectives_ = 0;
  std::string what_;                   // the current call, for messages
  std::vector<std::string> recorded_;  // calls since the last take_recorded()
};

}  // namespace lockstep::dist
