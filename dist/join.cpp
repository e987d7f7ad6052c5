// join.cpp: a rank's side of joining: connect, authenticate, retry. See join.h.
#include "dist/join.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "base/classic_text.h"
#include "base/printable.h"
#include "dist/auth.h"

namespace lockstep::dist {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds handshake_time{5};
// Limit for the store's first message. After this time, the rank connects again: while the store is flooded with
// connections, a new attempt may be served earlier.
constexpr std::chrono::seconds first_word_time{1};
constexpr std::chrono::seconds silent_time{20};  // limit for a series of attempts without a first message

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

/// A failure that may be temporary.
struct TryAgain {
  std::string why;
  bool silent = false;  // true if the connection was accepted, but nothing was received
};

// A connection used by one thread, which waits for each reply.
struct Dialog {
  Fd fd;
  FrameReader in{stranger_limit - wire_header};

  // Returns the next frame, or nothing if none has arrived by the deadline.
  std::optional<Frame> read(Clock::time_point deadline) {
    for (;;) {
      if (auto frame = in.next()) return frame;
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return std::nullopt;
      pollfd entry{fd.get(), POLLIN, 0};
      if (::poll(&entry, 1, int(std::min<int64_t>(left, 1000))) <= 0) continue;
      char buffer[4096];
      const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
      if (got < 0) throw TryAgain{str("the connection broke: ", std::strerror(errno))};
      if (got == 0) throw TryAgain{"the connection was closed"};
      in.push(buffer, size_t(got));
    }
  }
  void write(FrameKind kind, const std::string& body, Clock::time_point deadline) {
    const std::string all = encode(kind, 0, body);
    for (size_t sent = 0; sent < all.size();) {
      const ssize_t n = ::send(fd.get(), all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
      if (n >= 0) sent += size_t(n);
      else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        pollfd entry{fd.get(), POLLOUT, 0};
        ::poll(&entry, 1, 100);
        if (Clock::now() >= deadline) throw TryAgain{"it does not read what is sent"};
      } else if (errno != EINTR) {
        // The store has closed the connection. Its reply ("refused") may still be unread, so go on to read().
        return;
      }
    }
  }
};

[[noreturn]] void stranger(const std::string& where, const std::string& why) {
  throw DistError(Fault::protocol, 0,
                  str("[rendezvous] peer at ", where, " does not speak Lockstep's protocol (", why,
                      "): something else uses this port, choose another MASTER_PORT"));
}

[[noreturn]] void refused(const std::string& where, BodyReader in, bool may_wait) {
  const bool taken = in.u8() != 0;
  const std::string why = printable(in.text(1 << 16));
  if (taken && may_wait) throw TryAgain{"refused: " + why};
  throw DistError(Fault::refused, 0, str("[rendezvous] refused by ", where, ": ", why));
}

// Authenticates the connection: both sides prove that they know the token.
void shake_hands(Dialog& dialog, const Rendezvous& place, const std::string& where, Clock::time_point deadline) {
  const auto limit = std::min(deadline, Clock::now() + handshake_time);
  const auto next = [&](FrameKind expected) {
    auto frame = dialog.read(limit);
    if (!frame) stranger(where, str("it accepts connections and is silent for ", handshake_time.count(), " s"));
    if (frame->kind == FrameKind::refused) refused(where, BodyReader(frame->body), false);
    if (frame->kind != expected)
      stranger(where, str("expected a message of kind ", int(expected), ", got ", int(frame->kind)));
    return std::move(*frame);
  };
  try {
    pollfd entry{dialog.fd.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (::poll(&entry, 1, int(std::clamp<milliseconds>(left, milliseconds(0), first_word_time).count())) == 0)
      throw TryAgain{"it accepts connections and is silent", true};
    const Frame greeting = next(FrameKind::challenge);
    BodyReader in(greeting.body);
    const uint32_t protocol = in.u32();
    if (protocol != wire_protocol)
      throw DistError(Fault::refused, 0,
                      str("[rendezvous] ", where, " speaks protocol ", protocol, ", rank ", place.rank, " speaks ",
                          wire_protocol, ": all ranks need the same build"));
    const Nonce challenge = in.bytes<32>(), number = random_nonce();
    in.end();
    const Proof proof = prove(place.token, "rank", challenge, number, "control");
    dialog.write(FrameKind::hello,
                 Writer().u32(wire_protocol).bytes(number.data(), number.size()).bytes(proof.data(), proof.size()).body,
                 limit);
    const Frame welcome = next(FrameKind::welcome);
    BodyReader answer(welcome.body);
    if (!same_proof(answer.bytes<32>(), prove(place.token, "store", challenge, number, "control")))
      throw DistError(
          Fault::refused, 0,
          str("[rendezvous] ", where,
              " cannot prove that it knows our token: another program poses as rank 0; choose another MASTER_PORT"));
  } catch (const DistError& error) {
    if (!std::string_view(error.what()).starts_with("[wire]")) throw;
    stranger(where, error.what());
  }
}

// Makes one attempt to join. Throws TryAgain for temporary failures.
Seat attempt(const Rendezvous& place, const Member& member, Clock::time_point deadline) {
  std::string problems;
  Dialog dialog;
  for (const SocketAddress& address : resolve(place.address, place.port)) {
    LOCKSTEP_CHECK(address.is_loopback() || !place.token.empty(), "[rendezvous] expected a token to join at ",
                   address.text(),
                   ", got none. `lockstep run` makes one; else set LOCKSTEP_TOKEN to the same secret on all ranks "
                   "(openssl rand -hex 32)");
    int problem = 0;
    dialog.fd = connect_to(address, std::min(deadline, Clock::now() + handshake_time), problem);
    if (dialog.fd) break;
    check_descriptors(problem, "connecting to the store");
    problems = std::strerror(problem);
  }
  if (!dialog.fd) throw TryAgain{problems};
  const std::string where = endpoint(place.address, place.port);
  shake_hands(dialog, place, where, deadline);
  dialog.in.set_limit(body_limit);
  const double seconds_left = std::max(0.0, Seconds(deadline - Clock::now()).count());
  Writer join;
  join.u32(uint32_t(member.rank))
      .u32(uint32_t(member.world_size))
      .u32(member.pid)
      .u64(member.incarnation)
      .text(member.host.substr(0, 256));
  join.text(member.job);
  dialog.write(FrameKind::join, join.seconds(seconds_left).text(member.identity).body, deadline);
  for (;;) {
    // Wait 2 s longer than the deadline: rank 0 knows the deadline too, and its error names the missing ranks.
    const auto frame = dialog.read(deadline + std::chrono::seconds(2));
    if (!frame)
      throw DistError(
          Fault::timeout, -1,
          str("[rendezvous] rank ", place.rank, " waited ", text_of(place.timeout), " for the other ranks; rank 0 at ",
              where, " does not answer any more; see the output of rank 0"));
    if (frame->kind == FrameKind::heartbeat) continue;
    BodyReader in(frame->body);
    if (frame->kind == FrameKind::failure) throw read_failure(in);
    if (frame->kind == FrameKind::refused) refused(where, in, !place.file.empty());
    if (frame->kind != FrameKind::joined)
      stranger(where, str("expected the start of the job, got a message of kind ", int(frame->kind)));
    Seat seat;
    seat.heartbeat = Seconds(in.seconds());
    const uint32_t pid = in.u32();
    seat.store = str("rank 0 (pid ", pid, " on ", in.text(256), ")");
    in.end();
    seat.fd = std::move(dialog.fd);
    seat.in = std::move(dialog.in);
    return seat;
  }
}

std::string contents(const Rendezvous& place) {
  return str("lockstep rendezvous 1\nhost=", place.address, "\nport=", place.port, "\ntoken=", place.token, "\nend\n");
}

// Reads address, port and token, which rank 0 wrote into the file. Throws TryAgain while the file does not exist.
void read_published(Rendezvous& place) {
  const Fd fd(::open(place.file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) check_descriptors(errno, "opening " + place.file);
  if (!fd && errno == ENOENT) throw TryAgain{"the file does not exist"};
  LOCKSTEP_CHECK(fd, "[rendezvous] cannot read ", place.file, ": ", std::strerror(errno),
                 "; name a file that this user may read");
  struct stat info {};
  LOCKSTEP_CHECK(
      ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0,
      "[rendezvous] expected ", place.file,
      " to be a file of this user that nobody else may read or write, as rank 0 makes it: somebody else has put it "
      "there; remove it");
  std::string text(4096, '\0');
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  text.resize(size_t(std::max<ssize_t>(got, 0)));
  std::istringstream lines(text);
  std::string head, host, port, token, end;
  std::getline(lines, head) && std::getline(lines, host) && std::getline(lines, port) && std::getline(lines, token) &&
      std::getline(lines, end);
  const bool complete = head == "lockstep rendezvous 1" && host.starts_with("host=") && port.starts_with("port=") &&
                        token.starts_with("token=") && end == "end";
  const int number = complete ? read_number<int>(port.substr(5)).value_or(0) : 0;
  LOCKSTEP_CHECK(complete && number >= 1 && number <= 65535, "[rendezvous] expected ", place.file,
                 " to be written by rank 0 of a job, got something else: name another file, or remove it");
  place.address = host.substr(5);
  place.port = number;
  place.token = token.substr(6);
}

}  // namespace

Seat take_seat(Rendezvous& place, const Member& member, Clock::time_point deadline) {
  const bool from_file = !place.file.empty() && place.rank != 0;
  const std::string where = from_file ? place.file : endpoint(place.address, place.port);
  std::string last = "not tried";
  std::optional<Clock::time_point> silent;  // start of an uninterrupted series of silent attempts
  for (auto pause = milliseconds(5);; pause = std::min(pause * 2, milliseconds(200))) {
    try {
      if (from_file) read_published(place);
      return attempt(place, member, deadline);
    } catch (const TryAgain& again) {
      last = again.why;
      if (!again.silent && Clock::now() < deadline) silent.reset();
      if (again.silent && !silent) silent = Clock::now();
      const bool over = Clock::now() + pause >= deadline || (silent && Clock::now() - *silent > silent_time);
      if (silent && over && !from_file) stranger(where, last);
    } catch (const DistError& error) {
      // The file may be left over from an earlier run; its port may now belong to another program.
      const bool stale = from_file && (error.fault == Fault::protocol || contains(error.what(), "wrong token") ||
                                       contains(error.what(), "cannot prove"));
      if (!stale || Clock::now() >= deadline) throw;
      last = error.what();
    }
    if (Clock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  throw DistError(Fault::timeout, 0,
                  str("[rendezvous] rank ", place.rank, " waited ", text_of(place.timeout), " for rank 0 at ", where,
                      ": ", last, "; start rank 0, and give all ranks the same ",
                      from_file ? "path of the file" : "MASTER_ADDR and MASTER_PORT"));
}

void publish(const Rendezvous& place) {
  const std::string temporary = str(place.file, ".", ::getpid(), ".", place.port), text = contents(place);
  const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool good = fd && ::write(fd.get(), text.data(), text.size()) == ssize_t(text.size()) &&
                    ::rename(temporary.c_str(), place.file.c_str()) == 0;
  const int problem = errno;
  if (!good) ::unlink(temporary.c_str());
  if (!good) check_descriptors(problem, "writing " + place.file);
  LOCKSTEP_CHECK(good, "[rendezvous] rank 0 cannot write ", place.file, ": ", std::strerror(problem),
                 "; name a file in a folder that exists and that this user may write");
}

void unpublish(const Rendezvous& place) noexcept {
  try {
    Rendezvous there;
    there.file = place.file;
    read_published(there);
    if (there.token == place.token) ::unlink(place.file.c_str());
  } catch (...) {  // the file belongs to another job now
  }
}

}  // namespace lockstep::dist
