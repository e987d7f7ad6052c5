#pragma once
// A TCP proxy for tests: stands between two peers and delays, cuts, truncates or flips what passes, by seed.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

struct ProxyFaults {
  double delay = 0;             ///< seconds that every piece waits
  int reset_first = 0;          ///< so many connections are reset as soon as they come
  int64_t cut_after = -1;       ///< bytes (both directions together, over a connection) after which it is reset
  int64_t truncate_after = -1;  ///< bytes after which it is closed in order: the receiver sees the end of the stream
  double flips = 0;             ///< probability that a byte arrives with one bit turned
  int64_t flip_at = -1;         ///< exactly this byte from the caller gets one bit turned
  int piece = 1 << 16;          ///< the most bytes passed on at once; 1 shows every boundary
  uint64_t seed = 1;
};

class Proxy {
 public:
  /// Listens at a free port of 127.0.0.1; connects to host:port for each who comes.
  Proxy(std::string host, int port, ProxyFaults faults = {});
  ~Proxy();
  Proxy(const Proxy&) = delete;
  int port() const;
  int connections() const;  ///< that have come so far
  int64_t bytes() const;    ///< passed on so far
  void cut();               ///< resets all connections now
  void hold(bool on);       ///< passes nothing on, and closes nothing: a cable that is unplugged

 private:
  struct State;
  std::unique_ptr<State> state_;
};
