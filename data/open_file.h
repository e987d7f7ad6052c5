#pragma once
// File descriptors and system errors, for the files of data/ that call the system directly.
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"

namespace lockstep::data {

/// Raises "cannot WHAT PATH" with the text of errno.
[[noreturn]] inline void fail_system(const std::string& what, const std::string& path) {
  const int error = errno;
  fail(str("[file] cannot ", what, " ", path, ": ", std::strerror(error),
           error == ENOSPC  ? " (free space, then save again)"
           : error == ELOOP ? " (a symbolic link is not followed: remove it)"
                            : "; check the path, its permissions and the disk"));
}

/// Owns a file descriptor: the destructor closes it.
struct FileDescriptor {
  int fd = -1;
  ~FileDescriptor() {
    if (fd >= 0) ::close(fd);
  }
};

/// A file opened for reading.
struct OpenFile : FileDescriptor {
  int64_t size = 0;        ///< bytes
  int64_t changed_at = 0;  ///< modification time, nanoseconds
};

/// Appends the file's next bytes to `text`, at most `count`. False at the end of the file.
inline bool append_next(const OpenFile& file, std::string& text, size_t count, const std::string& path) {
  const size_t before = text.size();
  text.resize(before + count);
  ssize_t got;
  do got = ::read(file.fd, text.data() + before, count);
  while (got < 0 && errno == EINTR);
  if (got < 0) fail_system("read", path);
  text.resize(before + size_t(got));
  return got > 0;
}

/// Opens a file for reading. Error unless it is a regular file of at most `max_bytes`.
void open_regular(OpenFile& file, const std::string& path, int64_t max_bytes);

}  // namespace lockstep::data
