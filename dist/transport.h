#pragma once
// Byte streams between ranks: a channel for each pair of ranks of a group, over memory (threads, or processes of one
// host) or TCP. Channels never block; the executor waits with idle().
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/shared_memory.h"

namespace lockstep::dist {

class Control;

/// A descriptor to poll for reading, or also for writing.
struct PollDescriptor {
  int fd = -1;
  bool for_writing = false;
};

/// Both directions between this rank and one peer: two ordered byte streams. Throws DistError when the peer closed the
/// channel (rank_failed) or violates the protocol (protocol).
class Channel {
 public:
  virtual ~Channel() = default;
  /// Accepts as many of the bytes as fit now; returns their number, which may be 0. `more`: more bytes follow at once,
  /// so that a header and its data share a packet.
  virtual size_t send(const std::byte* data, size_t bytes, bool more = false) = 0;
  /// The received bytes as one contiguous span: all that are not yet consumed, or at least the next 128 of them.
  virtual std::span<const std::byte> arrived() = 0;
  virtual void consume(size_t bytes) = 0;  ///< frees `bytes` from the front of arrived()
  /// True if the peer sends nothing after the bytes that have arrived. Called if they end in the middle of an element.
  virtual bool ended() = 0;
  /// Moves up to `bytes` of the received bytes into `target` (TCP reads directly into it); returns their number.
  virtual size_t receive(std::byte* target, size_t bytes) {
    const auto here = arrived();
    const size_t n = std::min(bytes, here.size());
    if (n == 0) return 0;
    std::memcpy(target, here.data(), n);
    consume(n);
    return n;
  }
  /// Adds the descriptors to poll while nothing moves; none for memory channels.
  virtual void add_descriptors(std::vector<PollDescriptor>& /*to_poll*/) const {}
  /// True if both sides can map each other's memory. Then reach() gives the local address of a peer's tensor.
  virtual bool shares_memory() const { return false; }
  virtual std::byte* reach(const SegmentRange& /*theirs*/, size_t /*bytes*/) { return nullptr; }
  virtual const char* kind() const = 0;  ///< "threads", "shared memory", "tcp"
};

/// The channels of one group on one rank.
class Transport {
 public:
  virtual ~Transport() = default;
  /// The channel to another rank of the group. Connects on first use; both ranks must call channel() for each other.
  virtual Channel& channel(int peer) = 0;
  /// Called by a waiting executor; `rounds` is the number of times in a row that nothing moved. Spins first, then
  /// yields, then sleeps (memory) or polls the sockets (TCP), so that a long wait leaves the core to others.
  virtual void idle(int rounds) = 0;
};

/// Creates the transport of a group. Threads of one process share memory directly, processes of one host share an
/// unnamed file in memory, hosts communicate by TCP; Rendezvous::transport forces one of them (threads, shm, tcp).
/// `group` must be unique in the job: its ranks publish their addresses in the store under this name. Collective, but
/// does not wait for the other ranks.
std::unique_ptr<Transport> make_transport(Control& control, const std::string& group, int rank,
                                          const std::vector<int>& world_ranks);

}  // namespace lockstep::dist
