// libFuzzer: a joined rank sends arbitrary requests to the store. Each is answered or fails the job; the store keeps
// running, and its own messages can be parsed. The first four bytes of each message give its kind and the length of its
// body.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "dist/join.h"
#include "dist/store.h"
#include "tests/fuzz/limits.h"

using namespace lockstep::dist;

namespace {

constexpr uint32_t last_request = ~0u;

std::string messages(std::string_view data) {
  std::string out;
  uint32_t request = 0;
  while (data.size() >= 4) {
    const auto kind = FrameKind(1 + uint8_t(data[0]) % last_kind);
    const size_t length = std::min<size_t>(uint8_t(data[1]) | uint8_t(data[2]) << 8, data.size() - 4);
    out += encode(kind, request++, data.substr(4, length));
    data.remove_prefix(4 + length);
  }
  Writer bye;
  write_activity(bye, Activity{});
  return out + encode(FrameKind::leave, last_request, bye.u32(0).body);
}

/// Waits for `events`. Aborts after 5 s: the store does not answer. libFuzzer's timer interrupts calls.
void wait_for(int fd, short events) {
  pollfd entry{fd, events, 0};
  int ready;
  do ready = ::poll(&entry, 1, 5000);
  while (ready < 0 && errno == EINTR);
  if (ready != 1) std::abort();
}

/// Reads until the store confirms that this rank has left, or reports that the job has failed.
void listen(int fd, FrameReader in) {
  for (char buffer[4096];;) {
    while (const auto frame = in.next())
      if (frame->request == last_request || frame->kind == FrameKind::failure) return;
    wait_for(fd, POLLIN);
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got <= 0) return;
    in.push(buffer, size_t(got));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  const std::string all = messages({reinterpret_cast<const char*>(data), size});
  Rendezvous place{.port = 0};
  const Member member{.host = "here", .job = place.job, .incarnation = 1};
  Store store(place, member);
  place.port = store.port();
  Seat seat = take_seat(place, member, Clock::now() + std::chrono::seconds(10));
  const linger at_once{1, 0};  // resets on close, so that no port stays in TIME_WAIT
  ::setsockopt(seat.fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  for (size_t sent = 0; sent < all.size();) {
    wait_for(seat.fd.get(), POLLOUT);
    const ssize_t n = ::send(seat.fd.get(), all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
    if (n > 0) sent += size_t(n);
    else if (errno != EAGAIN && errno != EINTR) break;  // the store closed the connection
  }
  listen(seat.fd.get(), std::move(seat.in));
  return 0;
}
