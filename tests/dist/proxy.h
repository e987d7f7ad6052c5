#pragma once
// A TCP proxy for tests: it sits between two peers and delays, cuts, truncates or corrupts the stream, reproducibly by
// seed.
#include <cstdint>
#include <memory>
#include <string>

/// The faults that a proxy injects.
struct ProxyFaults {
  double delay = 0;        ///< delay of every piece, in seconds
  int reset_first = 0;     ///< resets the first connections, this many, as soon as they arrive
  int64_t cut_after = -1;  ///< bytes (of both directions) after which a connection is reset
  /// Bytes after which a connection is closed normally: the receiver sees the end of the stream.
  int64_t truncate_after = -1;
  int64_t flip_at = -1;  ///< flips one bit of exactly this byte from the caller
  int piece = 1 << 16;   ///< largest number of bytes forwarded at once; 1 exposes every boundary
  uint64_t seed = 1;
};

/// A proxy with a thread of its own.
class Proxy {
 public:
  /// Listens on a free port of 127.0.0.1 and opens a connection to host:port for each client.
  Proxy(std::string host, int port, ProxyFaults faults = {});
  ~Proxy();
  Proxy(const Proxy&) = delete;
  /// The port that it listens on.
  int port() const;
  int connections() const;  ///< number of clients so far
  void cut();               ///< resets all connections now
  /// True: stops forwarding without closing anything, like an unplugged cable; false: forwards again.
  void hold(bool on);

 private:
  struct State;
  std::unique_ptr<State> state_;
};
