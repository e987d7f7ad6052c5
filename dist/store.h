#pragma once
// The store: a server in rank 0's process. It holds keys and values, admits the ranks, receives their heartbeats, and
// tells all ranks the first failure. One thread, one poll loop, bounded buffers; an unauthenticated connection is
// closed after 5 s.
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "dist/auth.h"
#include "dist/net.h"
#include "dist/rank_table.h"
#include "dist/wire.h"

namespace lockstep::dist {

/// The server of one job.
class Store {
 public:
  /// Listens at rendezvous.address and port, or on rendezvous.listener. Error if the port is in use, the address is
  /// unknown, or other hosts could connect and there is no token.
  Store(const Rendezvous& rendezvous, const Member& host);
  /// Calls finish().
  ~Store();
  Store(const Store&) = delete;
  int port() const { return port_; }                       ///< the port that the store listens on
  const std::string& address() const { return address_; }  ///< the address that the store listens on
  /// Ends the store when rank 0 is done. Waits until no rank needs the store any more: all ranks have left, or have
  /// closed their connections after a failure (at most 2 s). After Rendezvous::timeout, ranks that have not left get an
  /// error.
  void finish();

 private:
  enum class State { greeted, proved, seated, closing };
  struct Connection {
    Fd fd;
    SocketAddress peer;
    FrameReader in{stranger_limit - wire_header};
    Outbox out;
    State state = State::greeted;
    Clock::time_point deadline;  // unused in state seated
    Nonce challenge{};
    int rank = -1;
    bool dead = false;
  };
  struct Waiter {  // a get or a barrier that cannot be answered yet
    Connection* connection;
    uint32_t request;
    std::string key;
    std::vector<int> ranks;  // ranks of a barrier; empty for a get
    Clock::time_point started, deadline;
  };

  void serve();
  void expire();
  void accept_some();
  void read(Connection& connection);
  void handle(Connection& connection, const Frame& frame);
  void handle_stranger(Connection& connection, const Frame& frame);
  void handle_join(Connection& connection, const Frame& frame);
  void handle_request(Connection& connection, const Frame& frame);
  bool put(Connection& connection, uint32_t request, const std::string& key, const std::string& value);
  void handle_barrier(Connection& connection, const Frame& frame);
  void handle_report(Connection& connection, const Frame& frame);
  void answer_barrier(const std::string& name, const std::vector<int>& ranks);
  void check_deadlines();
  void check_ranks();
  void send(Connection& connection, FrameKind kind, uint32_t request, const std::string& body);
  void send_error(Connection& connection, uint32_t request, const DistError& error);
  void refuse(Connection& connection, const std::string& why, bool taken = false);
  void lost(Connection& connection);
  void fail(const DistError& failure);
  void log(const std::string& what);
  bool may_stop();

  const Rendezvous place_;
  const Member host_;
  std::string address_;
  int port_ = 0;
  int64_t strangers_ = 0;  // limit of unauthenticated connections
  Fd listener_, wake_;
  std::list<Connection> connections_;
  std::list<Waiter> waiters_;
  std::map<std::string, std::string> values_;
  size_t stored_ = 0;
  RankTable rank_table_;
  bool begun_ = false;
  Clock::time_point started_, rendezvous_deadline_, next_heartbeat_, last_tick_, accept_again_;
  Seconds rendezvous_waited_;
  // Seconds during which this thread served its sockets. Time in which the whole process was stopped is excluded, since
  // silence during that time says nothing about the other ranks.
  double attended_ = 0;
  std::optional<DistError> failure_;
  struct Held {
    DistError failure;
    int reporter;
    Clock::time_point until;
  };
  // A report about another rank ("rank 2 closed its connection"), held back for a moment: rank 2 itself may still
  // report the cause, or turn out to be dead.
  std::optional<Held> held_;
  std::map<std::string, std::pair<Clock::time_point, int>> logged_;
  std::mutex mutex_;
  std::optional<Clock::time_point> finishing_;  // protected by mutex_
  std::thread thread_;
};

}  // namespace lockstep::dist
