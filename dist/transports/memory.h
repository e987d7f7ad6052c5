#pragma once
// Channels over memory, for ranks that are threads of one process and for processes of one host alike.
//
// Every rank of a group owns an inbox: a file in memory, without a name, that holds one fifo for each rank it may hear
// from. A sender finds the inbox of a thread by its nonce, and opens /proc/PID/fd/N of another process. Nothing is left
// behind when a process is killed: the pages live as long as somebody maps them.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dist/fifo.h"
#include "dist/transport.h"

namespace lockstep::dist {

/// A fifo of a file, mapped: a control page, then the data twice.
class FifoMapping {
 public:
  FifoMapping() = default;
  FifoMapping(int fd, size_t offset, size_t capacity);
  FifoMapping(FifoMapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  FifoMapping& operator=(FifoMapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~FifoMapping();
  void* address() const { return address_; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

/// Where to find an inbox; travels through the store.
struct InboxAddress {
  int64_t pid = 0;
  std::string process;  ///< random, one per process: pids mean something inside one pid namespace only
  std::string nonce;    ///< random, one per inbox; the file begins with it
  int fd = -1;
  size_t capacity = 0;
};

class Inbox {
 public:
  static std::shared_ptr<Inbox> create(int senders, size_t capacity);
  /// The inbox of a thread of this process; nullptr when it is gone.
  static std::shared_ptr<Inbox> find(const std::string& nonce);
  ~Inbox();
  Inbox(const Inbox&) = delete;

  const InboxAddress& address() const { return address_; }
  /// Memory of the fifo from `sender`; one mapping for this process.
  void* fifo(int sender);
  /// The owner reads no more: senders are told when they next find no room.
  void abandon() noexcept;
  static size_t offset_of_fifo(int sender, size_t capacity) {
    return FifoControl::bytes + size_t(sender) * (FifoControl::bytes + capacity);
  }

 private:
  Inbox() = default;
  InboxAddress address_;
  std::mutex mutex_;
  std::vector<FifoMapping> fifos_;
};

/// Random text that names this process.
const std::string& process_nonce();

/// One side of a pair: reads from a fifo of its own inbox, writes to one of the peer's. `mapped`: through a mapping of
/// its own even when the peer is a thread of this process. Finds the peer's at the first send: Error when the memory
/// cannot be shared, DistError when the peer is gone.
std::unique_ptr<Channel> make_memory_channel(std::shared_ptr<Inbox> mine, int rank, int peer, int peer_world_rank,
                                             const InboxAddress& theirs, bool mapped);

}  // namespace lockstep::dist
