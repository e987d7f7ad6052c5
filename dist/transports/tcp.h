#pragma once
// Channels over TCP, for ranks on different hosts. A pair of ranks of a group has one connection, or several, over
// which the stream is striped in blocks of 64 KiB (LOCKSTEP_TCP_STREAMS; default 1 on loopback, else 4).
//
//   lower rank ─────────── connects ────────────▶ listener of the higher rank
//              ◀────────── challenge ────────────
//              ──── number, proof, purpose ─────▶
//              ◀──────────── proof ──────────────          (auth.h, handshake.h)
//
// A listener is a socket with a thread that admits a connection if the peer proves that it knows the job's token
// (auth.h). All others are closed after one short message, or after 5 seconds. The purpose of a connection (job, group,
// ranks, stripe) is part of the proof.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dist/control.h"
#include "dist/net.h"
#include "dist/transport.h"

namespace lockstep::dist {

/// The listening socket of a rank for data connections.
class Listener {
 public:
  /// The listening socket of this rank, shared by its groups. Listens on the address under which other hosts reach this
  /// rank, at any free port. Error when it cannot listen, or others could reach it and there is no token.
  static std::shared_ptr<Listener> of(Control& control);
  ~Listener();
  Listener(const Listener&) = delete;

  const std::string& host() const { return host_; }  ///< the address that it listens on
  int port() const { return port_; }                 ///< the port that it listens on
  /// The connections of the pair of ranks that `purpose` names, in the order of their stripes. Empty until all of them
  /// have arrived.
  std::vector<Fd> claim(const std::string& purpose);

 private:
  struct Visitor;
  explicit Listener(Control& control);
  void run();
  bool enter(std::vector<Visitor>& visitors);  ///< accepts one connection; false when no more are queued
  /// Reads from a connection that has not been admitted yet. Returns false if it is admitted now, or must be dropped.
  bool listen_to(Visitor& visitor);
  void admit(Visitor& visitor, const std::string& purpose, size_t stripe, size_t stripes);
  void reject(const Visitor& visitor, const std::string& why);

  const std::string host_, token_, job_;
  int port_ = 0;
  Fd listener_, wake_;
  Clock::time_point logged_{};
  std::mutex mutex_;
  std::map<std::string, std::vector<Fd>> admitted_;
  std::thread thread_;
};

/// The address of the socket on which a rank accepts data connections.
struct ListenerAddress {
  std::string host;
  int port = 0;
};

/// Makes the channel to a peer. The lower world rank connects to the listening socket of the higher one. On the higher
/// rank this call does not wait: the channel takes the connection when it has arrived. DistError when the peer is
/// unreachable, or another program answers.
std::unique_ptr<Channel> make_tcp_channel(Control& control, std::shared_ptr<Listener> listener,
                                          const std::string& group, int world_rank, int peer_world_rank,
                                          const ListenerAddress& theirs);

}  // namespace lockstep::dist
