#pragma once
// A program that does not belong to the job and connects to one of its ports.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "base/check.h"
#include "dist/net.h"
#include "tests/dist/job.h"

/// A connection of a stranger.
struct Stranger {
  lockstep::dist::Fd fd;
  std::string got;  ///< what was received and is not yet read
  explicit Stranger(int port, const std::string& host = "127.0.0.1") {
    using namespace lockstep::dist;
    int problem = 0;
    fd = connect_to(resolve(host, port).front(), Clock::now() + std::chrono::seconds(10), problem);
    LOCKSTEP_CHECK(fd, "cannot connect, errno ", problem);
  }
  void say(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return;
      if (n > 0) sent += size_t(n);
    }
  }
  /// Adds to `got` what arrives within 0.1 s; false if the other side has closed.
  bool receive() {
    pollfd entry{fd.get(), POLLIN, 0};
    ::poll(&entry, 1, 100);
    char buffer[4096];
    const ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n > 0) got.append(buffer, size_t(n));
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
  }
  /// Receives until the other side closes; true if it does so within 20 s.
  bool is_closed() {
    for (const double end = now_seconds() + 20; now_seconds() < end;)
      if (!receive()) return true;
    return false;
  }
};
