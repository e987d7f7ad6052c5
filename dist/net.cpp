// net.cpp: opens sockets, and finds addresses of hosts. See net.h.
#include "dist/net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/check.h"
#include "base/classic_text.h"
#include "dist/control.h"

namespace lockstep::dist {
namespace {

SocketAddress from(const sockaddr* address, socklen_t length) {
  SocketAddress out;
  std::memcpy(&out.storage, address, length);
  out.length = length;
  return out;
}

// The bytes of the address itself, in network order.
std::string raw_bytes(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET)
    return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in&>(storage).sin_addr), 4};
  if (storage.ss_family == AF_INET6)
    return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr), 16};
  return {};
}

bool in_subnet(const std::string& address, const std::string& net, int bits) {
  if (address.size() != net.size()) return false;
  for (int i = 0; i < bits; ++i)
    if ((uint8_t(address[size_t(i / 8)]) ^ uint8_t(net[size_t(i / 8)])) & (0x80 >> (i % 8))) return false;
  return true;
}

ino_t inode_of(const char* path) {
  struct stat info {};
  return ::stat(path, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

void Outbox::send(int fd, const std::string& bytes) {
  const bool was_empty = empty();
  bytes_ += bytes;
  if (was_empty) flush(fd);
}

void Outbox::flush(int fd) {
  while (!empty()) {
    const ssize_t n = ::send(fd, bytes_.data() + begin_, size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) break;  // the connection is broken: a later read reports why, after the peer's last messages
    begin_ += size_t(n);
  }
  clear();
}

bool SocketAddress::is_loopback() const {
  const std::string raw = raw_bytes(storage);
  if (raw.size() == 4) return uint8_t(raw[0]) == 127;
  if (raw.size() != 16) return false;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && uint8_t(raw[12]) == 127);
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "?";
  return text;
}

int SocketAddress::port() const {
  if (storage.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
}

std::string SocketAddress::text() const { return endpoint(host(), port()); }

std::string endpoint(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? str(host, ":", port) : str("[", host, "]:", port);
}

std::vector<SocketAddress> resolve(const std::string& host, int port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code == EAI_SYSTEM) check_descriptors(errno, "looking up " + host);
  LOCKSTEP_CHECK(code == 0, "[rendezvous] expected the name or address of a host, got '", host,
                 "': ", ::gai_strerror(code), "; check the spelling");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  std::vector<SocketAddress> out;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next)
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6)
      out.push_back(from(entry->ai_addr, entry->ai_addrlen));
  LOCKSTEP_CHECK(!out.empty(), "[rendezvous] expected a host with an IPv4 or IPv6 address, got '", host,
                 "' without one; name another host");
  return out;
}

static SocketAddress address_by(int (*ask)(int, sockaddr*, socklen_t*), int fd) {
  SocketAddress out;
  out.length = sizeof out.storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&out.storage), &out.length) != 0) out.length = 0;
  return out;
}
SocketAddress local_address(int fd) { return address_by(::getsockname, fd); }
SocketAddress peer_address(int fd) { return address_by(::getpeername, fd); }

void check_descriptors(int problem, const std::string& what) {
  if (problem != EMFILE && problem != ENFILE) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (problem == ENFILE)
    fail(str("[control] ", what, ": this machine has no open files left: raise it with sysctl fs.file-max"));
  fail(str("[control] ", what, ": this process has no open files left, its limit is ", limit.rlim_cur,
           ": raise it with ulimit -n"));
}

void prepare(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Fd listen_at(const SocketAddress& address) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) check_descriptors(errno, "listening at " + address.text());
  LOCKSTEP_CHECK(fd, "[rendezvous] cannot make a socket for ", address.text(), ": ", std::strerror(errno),
                 "; choose another MASTER_ADDR");
  const int on = 1;
  // Allow a port whose last connections have just ended.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int problem = errno;
    LOCKSTEP_CHECK(problem != EADDRINUSE, "[rendezvous] port ", address.port(),
                   " is used (by something else on this machine, at ", address.host(),
                   "): choose another MASTER_PORT, or start with `lockstep run`, which finds a free one");
    LOCKSTEP_CHECK(problem != EADDRNOTAVAIL,
                   "[rendezvous] rank 0 expected MASTER_ADDR to be an address of its own machine, got ", address.host(),
                   ": start rank 0 there, or name this machine");
    fail(str("[rendezvous] cannot listen at ", address.text(), ": ", std::strerror(problem),
             "; choose another MASTER_ADDR or MASTER_PORT"));
  }
  return fd;
}

int open_listener(const std::string& address, int& port) {
  LOCKSTEP_CHECK(port >= 0 && port <= 65535, "[rendezvous] expected a port from 0 to 65535, got ", port);
  Fd fd = listen_at(resolve(address, port).front());
  port = local_address(fd.get()).port();
  return fd.release();
}

static Fd try_to_connect(const SocketAddress& address, Clock::time_point deadline, int& problem) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  problem = errno;
  if (!fd) return {};
  prepare(fd.get());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0) return fd;
  problem = errno;
  if (problem != EINPROGRESS && problem != EINTR) return {};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    problem = ETIMEDOUT;
    if (left <= 0) return {};
    pollfd entry{fd.get(), POLLOUT, 0};
    const int ready = ::poll(&entry, 1, int(std::min<int64_t>(left, 1000)));
    if (ready < 0 && errno != EINTR) {
      problem = errno;
      return {};
    }
    if (ready > 0) break;
  }
  socklen_t size = sizeof problem;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &problem, &size);
  // A connection to a free local port may by chance connect to itself: both ends are then the same socket.
  if (problem == 0 && local_address(fd.get()).text() == peer_address(fd.get()).text()) problem = ECONNREFUSED;
  if (problem != 0) return {};
  return fd;
}

// On loopback, a connection is answered at once unless the listener's queue is full. The kernel would retry only after
// a second, when a flood has filled the queue again; so retry every 100 ms instead.
Fd connect_to(const SocketAddress& address, Clock::time_point deadline, int& problem) {
  for (;;) {
    const auto soon = Clock::now() + std::chrono::milliseconds(100);
    const bool last = !address.is_loopback() || soon >= deadline;
    Fd fd = try_to_connect(address, last ? deadline : soon, problem);
    if (fd || last || problem != ETIMEDOUT) return fd;
  }
}

std::string address_on(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    check_descriptors(errno, "listing network interfaces");
    fail(str("[rendezvous] cannot list network interfaces: ", std::strerror(errno), "; unset LOCKSTEP_INTERFACE"));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);

  std::string net;
  int bits = 0;
  if (const size_t slash = interface.find('/'); slash != std::string::npos) {
    unsigned char raw[16];
    const std::string host = interface.substr(0, slash), size = interface.substr(slash + 1);
    if (::inet_pton(AF_INET, host.c_str(), raw) == 1) net.assign(reinterpret_cast<char*>(raw), 4);
    else if (::inet_pton(AF_INET6, host.c_str(), raw) == 1) net.assign(reinterpret_cast<char*>(raw), 16);
    bits = read_number<int>(size).value_or(-1);
    LOCKSTEP_CHECK(!net.empty() && bits >= 0 && bits <= int(net.size()) * 8,
                   "[rendezvous] expected an interface or a subnet such as eth0, 10.0.0.0/8 or fd00::/8, got '",
                   interface, "'");
  }

  std::string found, all;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    const int family = entry->ifa_addr ? entry->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    const SocketAddress address = from(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    const std::string host = address.host();
    all += str(all.empty() ? "" : ", ", entry->ifa_name, " ", host);
    if (net.empty() ? interface != entry->ifa_name : !in_subnet(raw_bytes(address.storage), net, bits)) continue;
    // Prefer the first IPv4 address of an interface, else its first IPv6 address that is not link-local.
    const bool better = found.empty() || (found.find(':') != std::string::npos && family == AF_INET) ||
                        (found.find('%') != std::string::npos && host.find('%') == std::string::npos);
    if (better) found = host;
  }
  LOCKSTEP_CHECK(!found.empty(), "[rendezvous] expected a network interface or subnet of this machine, got '",
                 interface, "'; this machine has ", all);
  return found;
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return str(boot.empty() ? host_name() : boot, "/net ", inode_of("/proc/self/ns/net"), "/pid ",
             inode_of("/proc/self/ns/pid"), "/user ", ::geteuid());
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "unknown host";
}

std::string text_of(std::chrono::duration<double> seconds) {
  const double s = seconds.count();
  return s < 10000 ? format("%.4g s", s < 1000 ? s : std::round(s)) : str(int64_t(s), " s");
}

std::string text_of(const std::vector<int>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;  // "1, 2" rather than "1-2"
    out += str(i ? ", " : "", ranks[i]);
    if (end - i >= 3) out += str("-", ranks[end - 1]);
    i = end;
  }
  return out;
}

std::string named(const std::vector<int>& ranks) { return (ranks.size() == 1 ? "rank " : "ranks ") + text_of(ranks); }

}  // namespace lockstep::dist
