#pragma once
// Channels over TCP, for ranks on different hosts: one connection for each pair of ranks of a group, or several, over
// which the stream is dealt in blocks of 64 KiB (LOCKSTEP_TCP_STREAMS; 1 on loopback, else 4).
//
//   lower rank ── connects ──▶ door of the higher rank       challenge ◀──, proof and purpose ──▶, proof ◀── (auth.h)
//
// A door is a listening socket and a thread that lets in those who know the job's token; nobody else gets further than
// one message, 5 seconds and 4 KiB. What a connection is for (job, group, ranks, stripe) is part of the proof.
#include <condition_variable>
#include <cstdint>
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

class Door {
 public:
  /// The door of a rank, shared by its groups. Listens on the address under which others reach this rank, at any free
  /// port.
  static std::shared_ptr<Door> of(Control& control);
  ~Door();
  Door(const Door&) = delete;

  const std::string& host() const { return host_; }
  int port() const { return port_; }
  /// The connections that came for this purpose, once they are all there; empty before.
  std::vector<Fd> claim(const std::string& purpose);

 private:
  struct Visitor;
  explicit Door(Control& control);
  void run();
  bool enter(std::vector<Visitor>& visitors);  ///< false: nobody is waiting outside
  bool listen_to(Visitor& visitor);            ///< false: to be dropped
  void admit(Visitor& visitor, const std::string& purpose, size_t stripe, size_t stripes);
  void turn_away(const Visitor& visitor, const std::string& why);

  const std::string host_, token_, job_;
  int port_ = 0;
  Fd listener_, wake_;
  Clock::time_point logged_{};
  std::mutex mutex_;
  std::map<std::string, std::vector<Fd>> admitted_;
  std::thread thread_;
};

/// Where a rank's door is.
struct DoorAddress {
  std::string host;
  int port = 0;
};

/// Connects to the door of `peer` when this rank is the lower one, else waits (without blocking) until it comes.
/// DistError when it is gone, or somebody else is there.
std::unique_ptr<Channel> make_tcp_channel(Control& control, std::shared_ptr<Door> door, const std::string& group,
                                          int world_rank, int peer_world_rank, const DoorAddress& theirs);

}  // namespace lockstep::dist
