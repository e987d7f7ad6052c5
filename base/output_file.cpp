// Opens files without following links or blocking on pipes. See output_file.h.
#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace lockstep {
namespace {

/// Opens a regular file. Returns its descriptor, or -1 with the reason in errno.
int open_regular_file(const std::string& path, int flags) {
  // In /proc, in /dev/fd and directly in /dev only the system creates files, so a pipe or device there is meant. Users
  // can create files in subfolders such as /dev/shm, so there it is an Error.
  const bool of_the_system =
      path.starts_with("/proc/") || path.starts_with("/dev/fd/") || (path.starts_with("/dev/") && path.rfind('/') == 4);
  if (of_the_system) return ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666);
  struct stat info;
  if (fd < 0 || (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode))) return fd;
  ::close(fd);
  errno = ENXIO;
  return -1;
}

std::string reason() {
  return errno == ELOOP   ? "it is a symbolic link, which is not followed; remove it"
         : errno == ENXIO ? "it is a pipe or a device, not a regular file; remove it"
                          : std::strerror(errno);
}

}  // namespace

int open_output(const std::string& path, int flags, std::string_view prefix) {
  const int fd = open_regular_file(path, O_WRONLY | O_CREAT | O_NOFOLLOW | flags);
  LOCKSTEP_CHECK(fd >= 0, prefix, path, ": cannot be written: ", reason(), "; give a path that you may write to");
  return fd;
}

std::string read_start(const std::string& path, size_t limit) {
  const int fd = open_regular_file(path, O_RDONLY);
  LOCKSTEP_CHECK(fd >= 0, path, ": cannot be read: ", reason(), "; give the path of a file that you may read");
  std::string text;
  ssize_t got = 1;
  while (got > 0 && text.size() < limit) {
    const size_t before = text.size(), wanted = std::min<size_t>(limit - before, 1 << 16);
    text.resize(before + wanted);
    do got = ::read(fd, text.data() + before, wanted);
    while (got < 0 && errno == EINTR);
    text.resize(before + size_t(std::max<ssize_t>(got, 0)));
  }
  const std::string problem = got < 0 ? reason() : "";
  ::close(fd);
  LOCKSTEP_CHECK(problem.empty(), path, ": cannot be read: ", problem, "; check the file and its disk");
  return text;
}

OutputFile::OutputFile(const std::string& path, bool anew, std::string_view prefix)
    : fd_(open_output(path, anew ? O_TRUNC : O_APPEND, prefix)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool OutputFile::is_empty() const {
  struct stat info;
  return ::fstat(fd_, &info) == 0 && info.st_size == 0;
}

bool OutputFile::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(size_t(written));
  }
  return true;
}

}  // namespace lockstep
