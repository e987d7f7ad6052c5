#pragma once
// Sockets: addresses (IPv4 and IPv6), listening, connecting with a deadline; and the identity of this host.
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::dist {

using Clock = std::chrono::steady_clock;  // monotonic: the time of day may jump

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  /// Takes ownership of `fd`; -1 is none.
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }                      ///< the descriptor, -1 if none
  explicit operator bool() const { return fd_ >= 0; }  ///< true if it holds a descriptor
  void close() { *this = Fd(); }                       ///< closes it now
  int release() { return std::exchange(fd_, -1); }     ///< gives up ownership

 private:
  int fd_ = -1;
};

/// Bytes that a non-blocking socket has not accepted yet.
class Outbox {
 public:
  bool empty() const { return begin_ == bytes_.size(); }  ///< true if nothing is left to send
  size_t size() const { return bytes_.size() - begin_; }  ///< bytes left to send
  void clear() { bytes_.clear(), begin_ = 0; }            ///< discards what is left
  /// Appends bytes, and sends as much as the socket accepts now.
  void send(int fd, const std::string& bytes);
  /// Sends as much as the socket accepts now. Discards the rest if the connection is broken.
  void flush(int fd);

 private:
  std::string bytes_;
  size_t begin_ = 0;
};

/// An IPv4 or IPv6 address with a port; length 0 is none.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  bool is_loopback() const;  ///< true for 127.0.0.0/8, its addresses mapped into IPv6, and ::1
  std::string host() const;  ///< numeric address; "?" on an error
  int port() const;          ///< port number
  std::string text() const;  ///< "127.0.0.1:29500", "[::1]:29500"
};

/// "host:port"; an IPv6 address gets brackets.
std::string endpoint(const std::string& host, int port);
/// Addresses of a host. Error naming the host when it cannot be resolved.
std::vector<SocketAddress> resolve(const std::string& host, int port);
/// The local address of a socket.
SocketAddress local_address(int fd);
/// The remote address of a socket.
SocketAddress peer_address(int fd);

/// Opens a listening socket. Error if the port is in use, the address is not of this machine, or descriptors ran out.
Fd listen_at(const SocketAddress& address);
/// Connects a non-blocking socket. On failure, or at the deadline, returns an empty Fd, and the errno in `problem`.
Fd connect_to(const SocketAddress& address, Clock::time_point deadline, int& problem);
/// Makes an accepted socket non-blocking and close-on-exec, and disables Nagle's delay (TCP_NODELAY).
void prepare(int fd);

/// Error naming the limit if errno `problem` means that descriptors ran out; else returns.
void check_descriptors(int problem, const std::string& what);

/// Address of this machine on an interface ("eth0") or in a subnet ("10.0.0.0/8", "fd00::/8"). If there is none: Error
/// listing the interfaces and addresses of this machine.
std::string address_on(const std::string& interface);
/// A text that is equal for ranks that can share memory: boot id, network and pid namespaces, user.
std::string host_identity();
/// The host's name, for messages.
std::string host_name();

/// A duration as text: "5 s", "0.6 s".
std::string text_of(std::chrono::duration<double> seconds);
/// A list of ranks as text: "2", "1, 2", "0-5, 7".
std::string text_of(const std::vector<int>& ranks);
/// A list of ranks with a noun: "rank 2", "ranks 1, 2".
std::string named(const std::vector<int>& ranks);

}  // namespace lockstep::dist
