#pragma once
// Sockets: addresses (IPv4 and IPv6), listening, connecting with a deadline, and which host this is.
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::dist {

using Clock = std::chrono::steady_clock;  // never the time of day, which jumps

/// Owns a descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close() { *this = Fd(); }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// What a socket has not taken yet.
class Outbox {
 public:
  bool empty() const { return begin_ == bytes_.size(); }
  size_t size() const { return bytes_.size() - begin_; }
  void clear() { bytes_.clear(), begin_ = 0; }
  /// Sends what fits now, in order.
  void send(int fd, const std::string& bytes);
  void flush(int fd);

 private:
  std::string bytes_;
  size_t begin_ = 0;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  bool is_loopback() const;
  std::string host() const;
  int port() const;
  std::string text() const;  ///< "127.0.0.1:29500", "[::1]:29500"
};

/// "host:port", with brackets around an IPv6 address.
std::string endpoint(const std::string& host, int port);
/// Error naming the host when there is no such one.
std::vector<SocketAddress> resolve(const std::string& host, int port);
SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

/// Error: port in use, address not of this machine, no descriptors left.
Fd listen_at(const SocketAddress& address);
/// Non-blocking afterwards. Without a descriptor: errno is in `problem`. Gives up at the deadline.
Fd connect_to(const SocketAddress& address, Clock::time_point deadline, int& problem);
/// For accepted sockets: non-blocking, closed on exec, small messages at once.
void prepare(int fd);

/// Error with the limit when `problem` says that descriptors ran out; else returns.
void check_descriptors(int problem, const std::string& what);

/// Address of this machine on an interface ("eth0") or in a subnet ("10.0.0.0/8", "fd00::/8"). Error listing what there
/// is.
std::string address_on(const std::string& interface);
/// The same for two ranks that can share memory: boot, network and process namespaces, user.
std::string host_identity();
/// For people.
std::string host_name();

/// "5 s", "0.6 s".
std::string text_of(std::chrono::duration<double> seconds);
/// "2", "1, 2", "0-5, 7".
std::string text_of(const std::vector<int>& ranks);
/// "rank 2", "ranks 1, 2".
std::string named(const std::vector<int>& ranks);

}  // namespace lockstep::dist
