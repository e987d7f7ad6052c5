// memory.cpp: channels over ring buffers in memory. See memory.h.
#include "dist/transports/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>

#include "dist/control.h"
#include "dist/error.h"
#include "tensor/maker.h"
#include "tensor/memory.h"

namespace lockstep::dist {
namespace {

// Inboxes of this process, for senders that are threads of it.
struct InboxList {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Inbox>> inboxes;
};
InboxList& inbox_list() {
  static auto* all = new InboxList;  // never destroyed: groups may outlive static objects
  return *all;
}

class MemoryChannel final : public Channel {
 public:
  MemoryChannel(std::shared_ptr<Inbox> mine, int rank, int peer, int peer_world_rank, const InboxAddress& theirs,
                bool mapped)
      : mine_(std::move(mine)),
        address_(theirs),
        rank_(rank),
        peer_(peer_world_rank),
        mapped_(mapped),
        in_(mine_->fifo(peer), mine_->address().capacity),
        segments_(theirs.pid, peer_world_rank) {}
  ~MemoryChannel() override {
    if (out_) out_.close();
  }

  size_t send(const std::byte* data, size_t bytes, bool /*more*/) override {
    if (!out_) [[unlikely]]
      attach();  // not in the constructor: a peer that only sends may have left before this rank reads its bytes
    const size_t n = out_.write(data, bytes);
    if (n == 0 && bytes > 0 && out_.is_abandoned()) gone();
    return n;
  }
  std::span<const std::byte> arrived() override {
    auto here = in_.readable();
    if (here.empty() && in_.is_closed()) {
      here = in_.readable();  // read again: bytes may have arrived before the close
      if (here.empty()) gone();
    }
    return here;
  }
  void consume(size_t bytes) override { in_.consume(bytes); }
  bool ended() override { return in_.is_closed(); }
  bool shares_memory() const override { return true; }
  std::byte* reach(const SegmentRange& theirs, size_t bytes) override { return segments_.reach(theirs, bytes); }
  const char* kind() const override { return mapped_ ? "shared memory" : "threads"; }

 private:
  [[noreturn]] void gone() const {
    throw DistError(
        Fault::rank_failed, peer_,
        str("[transport] rank ", peer_,
            " closed its side of the group while this rank still waits for it; see the output of that rank"));
  }
  void attach();
  void attach_mapped();

  std::shared_ptr<Inbox> mine_, theirs_;  // keep the mappings alive; theirs_ is set only if the peer is a thread
  FifoMapping mapping_;                   // mapping of the peer's ring buffer, if the peer is a process
  const InboxAddress address_;
  const int rank_, peer_;  // this rank's number in the group, the peer's number in the world
  const bool mapped_;
  FifoReader in_;
  FifoWriter out_;
  PeerSegments segments_;
};

void MemoryChannel::attach() {
  if (mapped_) return attach_mapped();
  theirs_ = Inbox::find(address_.nonce);
  if (!theirs_) gone();
  out_ = FifoWriter(theirs_->fifo(rank_), address_.capacity);
}

void MemoryChannel::attach_mapped() {
  const std::string path = str("/proc/", address_.pid, "/fd/", address_.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT) gone();
    fail(str("[transport] expected to share memory with rank ", peer_, " through ", path,
             ", got: ", std::strerror(error),
             "; ranks of one host need the same user and pid namespace to share memory; run them so, or set "
             "LOCKSTEP_TRANSPORT=tcp"));
  }
  const struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close_at_end{fd};
  std::string nonce(address_.nonce.size(), ' ');
  struct stat status {};
  const bool same = fstat(fd, &status) == 0 &&
                    status.st_size >= off_t(Inbox::offset_of_fifo(rank_ + 1, address_.capacity)) &&
                    pread(fd, nonce.data(), nonce.size(), 0) == ssize_t(nonce.size()) && nonce == address_.nonce;
  LOCKSTEP_CHECK(
      same, "[transport] expected the memory of rank ", peer_, " at ", path,
      ", got another file: that rank has closed the group (see its output), or runs in another pid namespace (set "
      "LOCKSTEP_TRANSPORT=tcp)");
  mapping_ = FifoMapping(fd, Inbox::offset_of_fifo(rank_, address_.capacity), address_.capacity);
  out_ = FifoWriter(mapping_.address(), address_.capacity);
}

}  // namespace

FifoMapping::FifoMapping(int fd, size_t offset, size_t capacity) : bytes_(FifoControl::bytes + 2 * capacity) {
  const auto map = [&](void* at, size_t bytes, int protection, int flags, int file, size_t where) {
    void* p = mmap(at, bytes, protection, flags, file, off_t(where));
    if (p == MAP_FAILED) {
      const int error = errno;
      if (address_) munmap(address_, bytes_);
      fail_out_of_memory(str("[transport] expected to map ", bytes, " bytes of memory shared with another rank, got: ",
                             std::strerror(error), "; free memory, or raise the limit of address space (ulimit -v)"));
    }
    return static_cast<std::byte*>(p);
  };
  std::byte* base = map(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  address_ = base;
  constexpr int both = PROT_READ | PROT_WRITE, over = MAP_SHARED | MAP_FIXED;
  map(base, FifoControl::bytes + capacity, both, over, fd, offset);
  map(base + FifoControl::bytes + capacity, capacity, both, over, fd, offset + FifoControl::bytes);
}

FifoMapping::~FifoMapping() {
  if (address_) munmap(address_, bytes_);
}

std::shared_ptr<Inbox> Inbox::create(int senders, size_t capacity) {
  std::shared_ptr<Inbox> inbox(new Inbox);
  InboxAddress& address = inbox->address_;
  address = {.pid = getpid(),
             .process = process_nonce(),
             .nonce = random_token(),
             .fd = memfd_create("lockstep", MFD_CLOEXEC),
             .capacity = capacity};
  LOCKSTEP_CHECK(address.fd >= 0,
                 "[transport] expected a file in memory for the inbox of this rank, got: ", std::strerror(errno),
                 errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : "; free memory");
  LOCKSTEP_CHECK(ftruncate(address.fd, off_t(offset_of_fifo(senders, capacity))) == 0 &&
                     pwrite(address.fd, address.nonce.data(), address.nonce.size(), 0) == ssize_t(address.nonce.size()),
                 "[transport] expected ", offset_of_fifo(senders, capacity),
                 " bytes for the inbox of this rank, got: ", std::strerror(errno),
                 "; free memory, or choose LOCKSTEP_TRANSPORT=tcp");
  inbox->fifos_.resize(size_t(senders));
  InboxList& all = inbox_list();
  const std::lock_guard lock(all.mutex);
  all.inboxes.emplace(address.nonce, inbox);
  return inbox;
}

std::shared_ptr<Inbox> Inbox::find(const std::string& nonce) {
  InboxList& all = inbox_list();
  const std::lock_guard lock(all.mutex);
  const auto found = all.inboxes.find(nonce);
  return found == all.inboxes.end() ? nullptr : found->second.lock();
}

Inbox::~Inbox() {
  InboxList& all = inbox_list();
  {
    const std::lock_guard lock(all.mutex);
    all.inboxes.erase(address_.nonce);
  }
  if (address_.fd >= 0) ::close(address_.fd);
}

void* Inbox::fifo(int sender) {
  const std::lock_guard lock(mutex_);
  FifoMapping& mapping = fifos_.at(size_t(sender));
  if (!mapping.address())
    mapping = FifoMapping(address_.fd, offset_of_fifo(sender, address_.capacity), address_.capacity);
  return mapping.address();
}

void Inbox::abandon() noexcept {
  const uint32_t yes = 1;  // written through the file, since some senders' rings were never mapped here
  for (size_t sender = 0; sender < fifos_.size(); ++sender) {
    const size_t at = offset_of_fifo(int(sender), address_.capacity) + offsetof(FifoControl, abandoned);
    [[maybe_unused]] const ssize_t written = pwrite(address_.fd, &yes, sizeof yes, off_t(at));
  }
}

const std::string& process_nonce() {
  struct Name {
    std::string text = random_token();
  };
  static auto* const names = new PerProcess<Name>;  // a forked child inherits the parent's memory
  return names->get().text;
}

std::unique_ptr<Channel> make_memory_channel(std::shared_ptr<Inbox> mine, int rank, int peer, int peer_world_rank,
                                             const InboxAddress& theirs, bool mapped) {
  return std::make_unique<MemoryChannel>(std::move(mine), rank, peer, peer_world_rank, theirs, mapped);
}

}  // namespace lockstep::dist
