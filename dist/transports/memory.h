#pragma once
// Channels over memory, for threads of one process and for processes of one host alike.
//
// Every rank of a group owns an inbox: an unnamed file in memory, with a ring buffer (fifo.h) for each rank that may
// send to it. A sender finds an inbox of its own process by the inbox's nonce (a random text). To map the inbox of
// another process, it opens /proc/PID/fd/N. A killed process leaves nothing behind: the pages live only as long as they
// are mapped.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dist/fifo.h"
#include "dist/transport.h"

namespace lockstep::dist {

/// A mapping of one ring buffer of a file: its control page, then its data twice, so that no block wraps around.
class FifoMapping {
 public:
  FifoMapping() = default;
  /// Maps the ring at `offset`. Error when the system refuses.
  FifoMapping(int fd, size_t offset, size_t capacity);
  FifoMapping(FifoMapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  FifoMapping& operator=(FifoMapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~FifoMapping();
  void* address() const { return address_; }  ///< null if nothing is mapped

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

/// The location of an inbox; exchanged through the store.
struct InboxAddress {
  int64_t pid = 0;
  std::string process;  ///< random, one per process: a pid identifies a process within its pid namespace only
  std::string nonce;    ///< random, one per inbox; the first bytes of the file
  int fd = -1;
  size_t capacity = 0;
};

/// The ring buffers from which a rank receives, one for each sender.
class Inbox {
 public:
  /// A new inbox with a ring for each of `senders` ranks. Error when memory or descriptors are exhausted.
  static std::shared_ptr<Inbox> create(int senders, size_t capacity);
  /// The inbox with this nonce, if a thread of this process owns it; nullptr when it is gone.
  static std::shared_ptr<Inbox> find(const std::string& nonce);
  ~Inbox();
  Inbox(const Inbox&) = delete;

  const InboxAddress& address() const { return address_; }  ///< address at which other ranks find this inbox
  /// The ring from `sender`, mapped at the first call.
  void* fifo(int sender);
  /// Called when the owner stops reading. A sender notices this when its ring is full.
  void abandon() noexcept;
  /// Offset of a sender's ring in the file.
  static size_t offset_of_fifo(int sender, size_t capacity) {
    return FifoControl::bytes + size_t(sender) * (FifoControl::bytes + capacity);
  }

 private:
  Inbox() = default;
  InboxAddress address_;
  std::mutex mutex_;
  std::vector<FifoMapping> fifos_;
};

/// A random text that identifies this process.
const std::string& process_nonce();

/// Makes this rank's side of a channel, which reads from a ring of inbox `mine` and writes to a ring of the peer's
/// inbox. `mapped`: use a separate mapping even if the peer is a thread of this process. Attaches to the peer's inbox
/// at the first send: Error when memory cannot be shared, DistError when the peer is gone.
std::unique_ptr<Channel> make_memory_channel(std::shared_ptr<Inbox> mine, int rank, int peer, int peer_world_rank,
                                             const InboxAddress& theirs, bool mapped);

}  // namespace lockstep::dist
