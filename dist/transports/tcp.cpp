// tcp.cpp: channels over TCP, and the caller's side of their handshake. See tcp.h.
#include "dist/transports/tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/environment.h"
#include "dist/transports/handshake.h"

namespace lockstep::dist {
namespace {

constexpr size_t stripe_bytes = 64 << 10;
constexpr size_t buffer_bytes = 128 << 10;  // for received bytes that are used in place
constexpr size_t together = 128;            // bytes that arrived() guarantees to be contiguous

/// Number of TCP connections between this rank and the peer at `address`.
size_t streams_to(const SocketAddress& address) {
  const auto text = environment("LOCKSTEP_TCP_STREAMS");
  return text ? size_t(std::stoi(*text)) : address.is_loopback() ? 1 : 4;
}

class TcpChannel final : public Channel {
 public:
  TcpChannel(std::shared_ptr<Listener> listener, std::string purpose, int peer)
      : listener_(std::move(listener)), purpose_(std::move(purpose)), peer_(peer) {}

  void connected(std::vector<Fd> fds) {
    fds_ = std::move(fds);
    buffer_.resize(buffer_bytes);
  }

  size_t send(const std::byte* data, size_t bytes, bool more) override {
    if (!ready()) return 0;
    full_ = -1;
    size_t done = 0;
    while (done < bytes) {
      const size_t stripe = sent_ / stripe_bytes % fds_.size(),
                   n = std::min(bytes - done, stripe_bytes - sent_ % stripe_bytes);
      const ssize_t taken = ::send(fds_[stripe].get(), data + done, n,
                                   MSG_NOSIGNAL | MSG_DONTWAIT | (more && done + n == bytes ? MSG_MORE : 0));
      if (taken < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) lost(errno);
        full_ = fds_[stripe].get();
        break;
      }
      sent_ += size_t(taken);
      done += size_t(taken);
    }
    return done;
  }

  std::span<const std::byte> arrived() override {
    if (!ready()) return {};
    if (end_ - begin_ < together) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      end_ += read(buffer_.data() + end_, buffer_bytes - end_);
    }
    if (begin_ == end_ && ended_) lost(0);
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void consume(size_t bytes) override { begin_ += bytes; }
  bool ended() override { return ended_; }

  size_t receive(std::byte* target, size_t bytes) override {
    if (!ready()) return 0;
    size_t n = std::min(bytes, end_ - begin_);
    if (n > 0) std::memcpy(target, buffer_.data() + begin_, n);
    begin_ += n;
    if (n == bytes) return n;
    if (bytes - n < 4096) {  // a header or a small payload: read the rest, and ahead
      begin_ = end_ = 0;
      end_ = read(buffer_.data(), buffer_bytes);
      const size_t rest = std::min(bytes - n, end_);
      std::memcpy(target + n, buffer_.data(), rest);
      begin_ = rest;
      n += rest;
    } else {
      n += read(target + n, bytes - n);
    }
    if (n == 0 && ended_) lost(0);
    return n;
  }

  void add_descriptors(std::vector<PollDescriptor>& to_poll) const override {
    if (ended_) return;
    for (const Fd& fd : fds_) to_poll.push_back({fd.get(), fd.get() == full_});
  }
  const char* kind() const override { return "tcp"; }

 private:
  bool ready() {
    if (!fds_.empty()) [[likely]]
      return true;
    if (auto fds = listener_->claim(purpose_); !fds.empty()) connected(std::move(fds));
    return !fds_.empty();
  }

  /// Reads what has arrived, at most `bytes`, in stream order; returns the number of bytes read.
  size_t read(std::byte* target, size_t bytes) {
    size_t done = 0;
    while (done < bytes && !ended_) {
      const size_t stripe = received_ / stripe_bytes % fds_.size();
      // Several connections carry the stream in turn, a stripe each: read at most to the end of the current stripe.
      const size_t n =
          fds_.size() == 1 ? bytes - done : std::min(bytes - done, stripe_bytes - received_ % stripe_bytes);
      const ssize_t got = ::recv(fds_[stripe].get(), target + done, n, MSG_DONTWAIT);
      if (got < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        if (errno != ECONNRESET && errno != EPIPE) lost(errno);
        ended_ = true;
      } else if (got == 0) {
        ended_ = true;
      }
      if (got > 0) {
        received_ += size_t(got);
        done += size_t(got);
      }
      // The socket is empty now: skip the recv() that would only report this.
      if (got > 0 && fds_.size() == 1 && size_t(got) < n) break;
    }
    return done;
  }

  [[noreturn]] void lost(int error) const {
    throw DistError(Fault::rank_failed, peer_,
                    str("[transport] rank ", peer_, " closed its connection while this rank still waits for it",
                        error ? str(" (", std::strerror(error), ")") : std::string(), "; see the output of that rank"));
  }

  const std::shared_ptr<Listener> listener_;
  const std::string purpose_;
  const int peer_;  // world rank
  std::vector<Fd> fds_;
  uint64_t sent_ = 0, received_ = 0;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;
  int full_ = -1;  // descriptor whose send buffer was full; -1: none
  bool ended_ = false;
};

/// Thrown when the peer closed the connection during the handshake; then this rank connects again. A peer that is
/// flooded by unauthenticated connections drops the oldest ones, and so may drop one that is genuine.
struct HungUp {};
constexpr std::chrono::seconds hello_within{2}, calling_time{10};  // limits for a hello, and for all attempts

/// The caller's end of the handshake: blocking reads and writes with a deadline, which also check for failed ranks.
class Caller {
 public:
  Caller(Control& control, Fd fd, int peer, std::string where)
      : control_(control), fd_(std::move(fd)), peer_(peer), where_(std::move(where)) {}

  std::string read(size_t bytes) {
    std::string text;
    while (text.size() < bytes) {
      wait(POLLIN);
      char part[256];
      const ssize_t n = ::recv(fd_.get(), part, std::min(sizeof part, bytes - text.size()), 0);
      if (n > 0) text.append(part, size_t(n));
      else if (n == 0 || errno == ECONNRESET) throw HungUp();
      else if (errno != EAGAIN && errno != EINTR) refused(std::strerror(errno));
    }
    return text;
  }
  void write(const std::string& text) {
    answered_ = true;
    deadline_ = Clock::now() + calling_time;
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = ::send(fd_.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (n > 0) done += size_t(n);
      else if (n < 0 && errno == EAGAIN) wait(POLLOUT);
      else if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) throw HungUp();
      else if (n < 0 && errno != EINTR) refused(std::strerror(errno));
    }
  }
  [[noreturn]] void refused(const std::string& why) const {
    throw DistError(Fault::refused, peer_,
                    str("[transport] expected rank ", peer_, " at ", where_, " to accept a data connection: ", why,
                        "; see the output of that rank"));
  }
  Fd take() { return std::move(fd_); }

 private:
  void wait(short events) {
    for (;;) {
      if (control_.failed()) control_.raise();
      pollfd entry{fd_.get(), events, 0};
      if (::poll(&entry, 1, 20) > 0) return;
      if (Clock::now() < deadline_) continue;
      if (!answered_) throw HungUp();
      // Do not connect again: the peer may be slow and have accepted this connection already.
      refused("it does not answer, or does not speak Lockstep's protocol");
    }
  }

  Control& control_;
  Fd fd_;
  const int peer_;
  const std::string where_;
  Clock::time_point deadline_ = Clock::now() + hello_within;
  bool answered_ = false;
};

/// Carries out the handshake: both sides prove that they know the job's token. Returns the connection.
Fd introduce(Control& control, Caller caller, const handshake::Purpose& purpose) {
  const std::string hello = caller.read(handshake::hello_bytes);
  if (!hello.starts_with(handshake::magic)) caller.refused("it does not speak Lockstep's protocol");
  Nonce challenge;
  std::memcpy(challenge.data(), hello.data() + handshake::magic.size(), sizeof challenge);
  handshake::Answer answer{.number = random_nonce(), .proof = {}, .purpose = purpose.text()};
  LOCKSTEP_CHECK(answer.purpose.size() <= handshake::longest_purpose,
                 "[transport] expected names of job and group of less than 2,000 bytes together, got ",
                 answer.purpose.size(), "; shorten them");
  const std::string& token = control.place().token;
  answer.proof = prove(token, "rank", challenge, answer.number, answer.purpose);
  caller.write(answer.text());
  const std::string reply = caller.read(sizeof(Proof));
  Proof proof;
  std::memcpy(proof.data(), reply.data(), sizeof proof);
  if (!same_proof(proof, prove(token, "store", challenge, answer.number, answer.purpose)))
    caller.refused("it does not know the token of this job; set one LOCKSTEP_TOKEN on all ranks");
  return caller.take();
}

Fd call(Control& control, const SocketAddress& address, int peer, const handshake::Purpose& purpose) {
  const auto start = Clock::now();
  for (auto pause = std::chrono::milliseconds(10);; pause = std::min(pause * 2, std::chrono::milliseconds(500))) {
    if (control.failed()) control.raise();
    int problem = 0;
    Fd fd = connect_to(address, Clock::now() + std::chrono::seconds(2), problem);
    if (!fd) check_descriptors(problem, "connecting to rank " + std::to_string(peer));
    if (fd) {
      Caller caller(control, std::move(fd), peer, address.text());
      try {
        return introduce(control, std::move(caller), purpose);
      } catch (const HungUp&) {
        if (Clock::now() - start >= calling_time)
          throw DistError(Fault::refused, peer,
                          str("[transport] expected rank ", peer, " at ", address.text(),
                              " to accept a data connection, but the listener there closes it or does not answer: the "
                              "listener is of another job, has another token, or too many unauthenticated connections; "
                              "end other jobs, and set one LOCKSTEP_TOKEN on all ranks"));
      }
    } else if (problem == ECONNREFUSED ||
               Clock::now() - start >= std::min<Seconds>(control.place().timeout, Seconds(30))) {
      throw DistError(
          Fault::rank_failed, peer,
          str("[transport] rank ", peer, " cannot be reached at ", address.text(), ": ", std::strerror(problem),
              problem == ECONNREFUSED ? "; see the output of that rank"
                                      : "; set LOCKSTEP_INTERFACE to the interface or subnet that connects the ranks"));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

std::unique_ptr<Channel> make_tcp_channel(Control& control, std::shared_ptr<Listener> listener,
                                          const std::string& group, int world_rank, int peer_world_rank,
                                          const ListenerAddress& theirs) {
  handshake::Purpose purpose{
      .job = control.place().job,
      .what = str(group, " ", std::min(world_rank, peer_world_rank), "-", std::max(world_rank, peer_world_rank))};
  auto channel = std::make_unique<TcpChannel>(std::move(listener), purpose.what, peer_world_rank);
  if (world_rank > peer_world_rank) return channel;
  const SocketAddress address = resolve(theirs.host, theirs.port).front();
  purpose.stripes = streams_to(address);
  std::vector<Fd> fds;
  for (purpose.stripe = 0; purpose.stripe < purpose.stripes; ++purpose.stripe)
    fds.push_back(call(control, address, peer_world_rank, purpose));
  channel->connected(std::move(fds));
  return channel;
}

}  // namespace lockstep::dist
