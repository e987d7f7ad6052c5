// Mapped files, and files that change while they are mapped: see files.h.
//
// If a mapped file shrinks, a read past its new end raises SIGBUS, which would kill the process without a message. Our
// handler maps zeros there instead: the read continues, and check() reports the change, or a failed disk.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "data/files.h"
#include "data/open_file.h"

namespace lockstep::data {

/// The address range of a mapped file, in a lock-free list that the signal handler may walk at any time. The list only
/// grows: a range whose file was unmapped is reused.
struct MappedFile::Range {
  std::atomic<std::byte*> begin{nullptr};
  std::atomic<int64_t> size{0};
  std::atomic<bool> lost{false};  // true: some page could not be read
  Range* next = nullptr;
  MappedFile* file = nullptr;

  static std::atomic<Range*> first;
  static std::mutex mutex;
  static void add(MappedFile* file);
  static void remove(Range* range);
  static void on_bus_error(int signal, siginfo_t* info, void* context);
};
std::atomic<MappedFile::Range*> MappedFile::Range::first{nullptr};
std::mutex MappedFile::Range::mutex;

namespace {

struct sigaction previous_action;

int64_t nanoseconds(const timespec& time) { return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec; }

}  // namespace

void open_regular(OpenFile& file, const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK: otherwise opening a pipe without a writer would block.
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd < 0) fail_system("open", path);
  struct stat info;
  if (::fstat(file.fd, &info) != 0) fail_system("stat", path);
  LOCKSTEP_CHECK(S_ISREG(info.st_mode), "[file] expected a regular file, got ",
                 S_ISDIR(info.st_mode) ? "a folder: " : "a device or pipe: ", path, "; give the path of a file");
  LOCKSTEP_CHECK(info.st_size <= max_bytes, "[file] expected at most ", max_bytes, " bytes, got ", info.st_size, ": ",
                 path, "; use a smaller file");
  file.size = info.st_size;
  file.changed_at = nanoseconds(info.st_mtim);
}

void MappedFile::Range::on_bus_error(int signal, siginfo_t* info, void* context) {
  auto* const at = static_cast<std::byte*>(info->si_addr);
  for (Range* range = first.load(); range; range = range->next) {
    std::byte* const begin = range->begin.load();
    const int64_t size = range->size.load();
    if (!begin || at < begin || at >= begin + size) continue;
    const int64_t page = ::sysconf(_SC_PAGESIZE), offset = (at - begin) / page * page;
    range->lost = true;
    if (::mmap(begin + offset, size_t(size - offset), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0) != MAP_FAILED)
      return;
  }
  // The address is not in a mapped file: call the previous handler.
  if (previous_action.sa_flags & SA_SIGINFO) previous_action.sa_sigaction(signal, info, context);
  else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    previous_action.sa_handler(signal);
  else ::signal(signal, SIG_DFL);  // the instruction faults again and takes the default action
}

void MappedFile::Range::add(MappedFile* file) {
  static const bool handled = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &previous_action) == 0;
  }();
  LOCKSTEP_CHECK(handled, "[file] cannot handle SIGBUS: ", std::strerror(errno),
                 "; this is a bug in Lockstep, please report it");
  const std::lock_guard lock(mutex);
  Range* free = first.load();
  while (free && free->file) free = free->next;
  if (!free) {
    free = new Range;
    free->next = first.load();
    first = free;
  }
  free->file = file;
  free->size = file->size_;
  free->lost = false;
  free->begin = file->data_;
  file->range_ = free;  // under the lock, because check_mapped_files() may read it on another thread
}

void MappedFile::Range::remove(Range* range) {
  const std::lock_guard lock(mutex);
  range->begin = nullptr;
  range->file = nullptr;
}

std::shared_ptr<MappedFile> MappedFile::open(const std::string& path, int64_t max_bytes) {
  OpenFile file;
  open_regular(file, path, max_bytes);
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  mapped->changed_at_ = file.changed_at;
  if (file.size > 0) {  // mmap rejects length 0
    void* data = ::mmap(nullptr, size_t(file.size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
    if (data == MAP_FAILED) fail_system("map", path);
    mapped->data_ = static_cast<std::byte*>(data);
    mapped->size_ = file.size;
  }
  mapped->fd_ = std::exchange(file.fd, -1);
  Range::add(mapped.get());
  return mapped;
}

MappedFile::~MappedFile() {
  if (range_) Range::remove(range_);
  if (data_) ::munmap(data_, size_t(size_));
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::check() const {
  struct stat info;
  if (::fstat(fd_, &info) != 0) fail_system("stat", path_);
  LOCKSTEP_CHECK(info.st_size == size_, "[file] expected ", path_, " to stay as it is while it is in use: it had ",
                 size_, " bytes, now it has ", info.st_size, "; start again with the new file");
  LOCKSTEP_CHECK(nanoseconds(info.st_mtim) == changed_at_, "[file] expected ", path_,
                 " to stay as it is while it is in use, but it was written to; start again with the new file");
  LOCKSTEP_CHECK(!range_->lost, "[file] cannot read all of ", path_,
                 ": the system reported a disk error; check the disk");
}

void check_mapped_files() {
  const std::lock_guard lock(MappedFile::Range::mutex);
  for (const MappedFile::Range* range = MappedFile::Range::first; range; range = range->next)
    if (range->file) range->file->check();
}

}  // namespace lockstep::data
