// shared_memory.cpp: creates, maps and releases segments of shared memory. See shared_memory.h.
#include "dist/shared_memory.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "dist/error.h"
#include "tensor/maker.h"
#include "tensor/memory.h"
#include "tensor/ops.h"

namespace lockstep::dist {
namespace {

constexpr uint64_t magic_value = 0x31474553'4b43'4f4c;  // "LOCKSEG1"
constexpr size_t page = 4096;                           // size of the control page; the tensor's bytes follow

/// The first page of a segment's file: its identity and state.
struct ControlPage {
  uint64_t magic, serial;
  std::atomic<uint32_t> released;  ///< the owner has released the bytes
};
static_assert(sizeof(ControlPage) <= page && std::atomic<uint32_t>::is_always_lock_free);

std::byte* map_file(int fd, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, bytes, MADV_HUGEPAGE);  // a hint; few systems allow huge pages for shared memory
  return static_cast<std::byte*>(p);
}

/// A segment of this process.
struct Segment {
  uint64_t serial;
  int fd;
  std::byte* base;  ///< start of the mapping; the tensor's bytes begin one page later
  size_t bytes;     ///< size of the tensor
  Maker owner{};
};

struct SegmentList {
  std::mutex mutex;
  std::map<const std::byte*, Segment> by_address;  // segments, by the address of the tensor's first byte
};
SegmentList& segment_list() {
  static auto* all = new SegmentList;  // never destroyed: tensors may outlive static objects
  return *all;
}

void give_back(const std::byte* data) {
  SegmentList& all = segment_list();
  Segment segment;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_address.find(data);
    segment = found->second;
    all.by_address.erase(found);
  }
  if (segment.owner.is_here()) {  // in a forked copy, the pages belong to the parent
    reinterpret_cast<ControlPage*>(segment.base)->released.store(1, std::memory_order_release);
    // Frees the pages even while peers still have the file mapped.
    fallocate(segment.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(page), off_t(segment.bytes));
  }
  munmap(segment.base, page + segment.bytes);
  close(segment.fd);
}

Segment make_segment(size_t bytes) {
  LOCKSTEP_CHECK(sodium_init() >= 0,
                 "[shared_empty] expected libsodium to start, got an error; make /dev/urandom readable");
  Segment s{.serial = 0,
            .fd = memfd_create("lockstep-tensor", MFD_CLOEXEC | MFD_ALLOW_SEALING),
            .base = nullptr,
            .bytes = bytes};
  LOCKSTEP_CHECK(s.fd >= 0, "[shared_empty] expected a file in memory for ", bytes,
                 " bytes, got: ", std::strerror(errno),
                 errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : "; free memory");
  randombytes_buf(&s.serial, sizeof s.serial);
  // Seal the size: a peer must never access a page that was truncated away (SIGBUS).
  const bool made = ftruncate(s.fd, off_t(page + bytes)) == 0 &&
                    fcntl(s.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
                    (s.base = map_file(s.fd, page + bytes));
  if (!made) {
    const int error = errno;
    close(s.fd);
    fail_out_of_memory(str("[shared_empty] expected ", bytes, " bytes of memory to share with other ranks, got: ",
                           std::strerror(error), "; free memory, or use smaller tensors"));
  }
  auto* control = reinterpret_cast<ControlPage*>(s.base);
  control->magic = magic_value;
  control->serial = s.serial;
  return s;
}

}  // namespace

Tensor shared_tensor(const Shape& shape, DType dtype) {
  check_shape("shared_empty", shape);
  int64_t bytes = 0;
  LOCKSTEP_CHECK(!__builtin_mul_overflow(numel_of(shape), size_of(dtype), &bytes) && bytes < INT64_MAX / 2,
                 "[shared_empty] expected fewer than 2^62 bytes, got shape ", shape);
  if (bytes == 0) return empty(shape, {.dtype = dtype});
  const Segment segment = make_segment(size_t(bytes));
  std::byte* const data = segment.base + page;
  {
    SegmentList& all = segment_list();
    const std::lock_guard lock(all.mutex);
    all.by_address.emplace(data, segment);
  }
  return Tensor(Storage::adopt(data, bytes, cpu, [data] { give_back(data); }), 0, shape, contiguous_strides(shape),
                dtype);
}

SegmentRange placement_of(std::span<const std::byte> bytes) {
  SegmentList& all = segment_list();
  const std::lock_guard lock(all.mutex);
  auto found = all.by_address.upper_bound(bytes.data());
  if (found == all.by_address.begin()) return {};
  const auto& [data, segment] = *--found;
  const auto offset = size_t(bytes.data() - data);
  if (offset > segment.bytes || bytes.size() > segment.bytes - offset || !segment.owner.is_here()) return {};
  return {.serial = segment.serial, .offset = offset, .fd = segment.fd};
}

// --- the segments of a peer ---

struct PeerSegments::Mapped {
  Mapped(uint64_t serial, std::byte* base, size_t bytes) : serial(serial), base(base), bytes(bytes) {}
  ~Mapped() { munmap(base, page + bytes); }
  Mapped(const Mapped&) = delete;
  bool is_released() const {
    return reinterpret_cast<const ControlPage*>(base)->released.load(std::memory_order_acquire) != 0;
  }

  const uint64_t serial;
  std::byte* const base;
  const size_t bytes;
};

std::byte* PeerSegments::reach(const SegmentRange& placement, size_t bytes) {
  std::erase_if(mapped_, [](const auto& m) { return m->is_released(); });
  auto found = std::ranges::find(mapped_, placement.serial, [](const auto& m) { return m->serial; });
  if (found == mapped_.end()) {
    const std::string path = str("/proc/", pid_, "/fd/", placement.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    LOCKSTEP_CHECK(fd >= 0, "[transport] expected to share a tensor's memory with rank ", peer_, " through ", path,
                   ", got: ", std::strerror(errno),
                   errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : "; start all ranks as one user");
    const struct Close {
      int fd;
      ~Close() { close(fd); }
    } close_at_end{fd};
    uint64_t head[2] = {};
    struct stat status {};
    const bool same = fstat(fd, &status) == 0 && status.st_size > off_t(page) &&
                      pread(fd, head, sizeof head, 0) == sizeof head && head[0] == magic_value &&
                      head[1] == placement.serial;
    LOCKSTEP_CHECK(same, "[transport] expected the tensor of rank ", peer_, " at ", path,
                   ", got another file: that rank has released a tensor that is still in use; keep it until all ranks "
                   "have done the call");
    std::byte* const base = map_file(fd, size_t(status.st_size));
    LOCKSTEP_CHECK(base, "[transport] expected to map ", status.st_size, " bytes that rank ", peer_,
                   " shares, got: ", std::strerror(errno),
                   "; free memory, or raise the limit of address space (ulimit -v)");
    mapped_.push_back(std::make_shared<Mapped>(placement.serial, base, size_t(status.st_size) - page));
    found = std::prev(mapped_.end());
  }
  const Mapped& segment = **found;
  if (placement.offset > segment.bytes || bytes > segment.bytes - placement.offset) {
    throw DistError(Fault::protocol, peer_,
                    str("[transport] expected ", bytes, " bytes at offset ", placement.offset, " of a tensor of rank ",
                        peer_, ", which has ", segment.bytes, "; this is a bug in Lockstep, please report it"));
  }
  return segment.base + page + placement.offset;
}

}  // namespace lockstep::dist
