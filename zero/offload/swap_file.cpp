// Unnamed files, mappings of them, and aligned memory. See swap_file.h.
#include "zero/offload/swap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tensor/memory.h"
#include "tensor/ops.h"

namespace lockstep::zero {
namespace {

std::string reason(int error) { return std::strerror(error); }

/// Opens a new file without a name (O_TMPFILE). On file systems without O_TMPFILE it has a name, unlinked at once.
int open_unnamed(const std::string& folder, int flags) {
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  std::string name = folder + "/lockstep-swap-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC | flags);
  if (named < 0 && errno != EINVAL) return -1;
  const int error = errno;
  unlink(name.c_str());  // the file may exist even if O_DIRECT was refused
  errno = error;
  return named;
}

int64_t free_bytes(int fd) {
  struct statvfs room;
  return fstatvfs(fd, &room) == 0 ? int64_t(room.f_bavail) * int64_t(room.f_frsize) : 0;
}

}  // namespace

SwapFile::SwapFile(const std::string& folder, std::string what, int64_t bytes, bool write_zeros)
    : bytes_(round_to_block(bytes)), what_(what + " in " + folder) {
  file_ = dist::Fd(open_unnamed(folder, O_DIRECT));
  if (!file_ && errno == EINVAL) file_ = dist::Fd(open_unnamed(folder, 0)), direct_ = false;
  LOCKSTEP_CHECK(file_, "[offload] expected a folder where a file can be made for ", what, ", got '", folder,
                 "': ", reason(errno), "; give nvme_path a folder on a local disk");
  const int64_t room = free_bytes(descriptor());
  LOCKSTEP_CHECK(room >= bytes_, "[offload] ", what, " needs ", bytes_, " bytes, but in ", folder, " only ", room,
                 " are free; give nvme_path a folder with more space");
  const int error = posix_fallocate(descriptor(), 0, std::max<int64_t>(bytes_, 1));
  LOCKSTEP_CHECK(error == 0, "[offload] ", what, " needs ", bytes_, " bytes, but in ", folder,
                 " they cannot be reserved: ", reason(error), "; ", free_bytes(descriptor()),
                 " are free; give nvme_path another folder");
  if (!write_zeros) return;
  constexpr int64_t chunk = 1 << 20;
  const Tensor zeros = aligned_bytes(std::min(chunk, bytes_), false);
  std::memset(zeros.raw_data(), 0, size_t(zeros.numel()));
  for (int64_t at = 0; at < bytes_;) {
    const ssize_t n = pwrite(descriptor(), zeros.raw_data(), size_t(std::min(chunk, bytes_ - at)), at);
    if (n < 0 && errno == EINTR) continue;
    LOCKSTEP_CHECK(n > 0, "[offload] ", what_, ", offset ", at, ": expected to write ", std::min(chunk, bytes_ - at),
                   " bytes, got: ", n == 0 ? "none written" : reason(errno),
                   "; give nvme_path a folder on another disk");
    at += n;
  }
}

Tensor SwapFile::map(int64_t offset, int64_t numel, DType dtype) const {
  const int64_t begin = offset / file_block * file_block, size = numel * size_of(dtype), length = offset - begin + size;
  if (size == 0) return empty({0}, {.dtype = dtype, .device = cpu});
  struct stat now;
  LOCKSTEP_CHECK(fstat(descriptor(), &now) == 0 && now.st_size >= bytes_, "[offload] ", what_, ": expected a file of ",
                 bytes_, " bytes, got ", now.st_size, "; was it truncated? Start again, and leave the file alone");
  void* const data = mmap(nullptr, size_t(length), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor(), begin);
  LOCKSTEP_CHECK(data != MAP_FAILED, "[offload] ", what_, ", offset ", begin, ": expected to map ", length,
                 " bytes, got: ", reason(errno), "; free some memory, or give nvme_path another folder");
  const MemoryScope scope(Memory::offload);
  Ref<Storage> storage = Storage::adopt(data, length, cpu, [data, length] { munmap(data, size_t(length)); });
  return Tensor(std::move(storage), (offset - begin) / size_of(dtype), {numel}, {1}, dtype);
}

Tensor aligned_bytes(int64_t bytes, bool lock) {
  const int64_t size = std::max(round_to_block(bytes), file_block);
  void* const data = std::aligned_alloc(size_t(file_block), size_t(size));
  if (!data)
    fail_out_of_memory(str("[offload] expected memory for a buffer of ", size,
                           " bytes, got none; make sub_group_size, buffer_size or buffer_count smaller"));
  const bool locked = lock && mlock(data, size_t(size)) == 0;
  const MemoryScope scope(Memory::offload);
  return Tensor(Storage::adopt(data, size, cpu,
                               [data, size, locked] {
                                 if (locked) munlock(data, size_t(size));
                                 std::free(data);
                               }),
                0, {bytes}, {1}, u8);
}

}  // namespace lockstep::zero
