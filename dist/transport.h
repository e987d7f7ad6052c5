#pragma once
// How bytes get from rank to rank: a channel per pair of ranks and group, over memory (ranks that are threads, or
// processes of one host) or TCP. Channels never wait; the executor does, with idle().
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

struct Descriptor {
  int fd = -1;
  bool for_writing = false;
};

/// Both directions between this rank and one peer: two ordered streams of bytes. Throws DistError when the peer closed
/// it (rank_failed) or sends what it must not (protocol).
class Channel {
 public:
  virtual ~Channel() = default;
  /// Takes as many of the bytes as fit now; gives back how many (0: none fit). `more`: others follow at once, so that a
  /// header and its data go into one packet.
  virtual size_t send(const std::byte* data, size_t bytes, bool more = false) = 0;
  /// What has arrived and can be read where it lies. At least min(128, bytes not yet consumed) lie together.
  virtual std::span<const std::byte> arrived() = 0;
  virtual void consume(size_t bytes) = 0;
  /// Whether nothing will follow what has arrived. Asked when that ends in the middle of something.
  virtual bool ended() = 0;
  /// Moves up to `bytes` of what has arrived into `target` (TCP reads straight into it); gives back how many.
  virtual size_t receive(std::byte* target, size_t bytes) {
    const auto here = arrived();
    const size_t n = std::min(bytes, here.size());
    if (n == 0) return 0;
    std::memcpy(target, here.data(), n);
    consume(n);
    return n;
  }
  /// What to poll for while nothing moves: none for memory.
  virtual void add_descriptors(std::vector<Descriptor>& /*to_poll*/) const {}
  /// Whether both sides can map each other's memory; where a tensor of the peer lies here, then.
  virtual bool shares_memory() const { return false; }
  virtual std::byte* reach(const Placement& /*theirs*/, size_t /*bytes*/) { return nullptr; }
  virtual const char* kind() const = 0;  ///< "threads", "shared memory", "tcp"
};

/// The channels of one group at one rank.
class Transport {
 public:
  virtual ~Transport() = default;
  /// The channel to a rank of the group; connects on first use (both sides must ask). Never to oneself.
  virtual Channel& channel(int peer) = 0;
  /// Called by a waiting executor with the number of times in a row that nothing moved: spins, then yields, then sleeps
  /// (memory) or polls the sockets (TCP), so that a rank that waits long leaves the core to others.
  virtual void idle(int rounds) = 0;
};

/// The transport of a group: threads of one process share memory as it is, processes of one host share memory through a
/// file without a name, hosts are linked by TCP; Rendezvous::transport forces one of them (threads, shm, tcp).
/// `group` must be unique in the job: all its ranks meet under that name in the store. Collective, but does not wait.
std::unique_ptr<Transport> make_transport(Control& control, const std::string& group, int rank,
                                          const std::vector<int>& world_ranks);

}  // namespace lockstep::dist
