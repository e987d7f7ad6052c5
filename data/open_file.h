#pragma once
// Descriptors and their errors, for the files of data/ that call the system.
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "tensor/check.h"

namespace lockstep::data {

[[noreturn]] inline void fail_system(const std::string& what, const std::string& path) {
  const int error = errno;
  fail(str("[file] cannot ", what, " ", path, ": ", std::strerror(error),
           error == ENOSPC ? " (free space, then save again)" : ""));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

struct OpenFile : Descriptor {
  int64_t size = 0;
  int64_t changed_at = 0;  ///< nanoseconds
};

/// Opens for reading; Error unless it is a regular file of at most `max_bytes`.
void open_regular(OpenFile& file, const std::string& path, int64_t max_bytes);

}  // namespace lockstep::data
