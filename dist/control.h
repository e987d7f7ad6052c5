#pragma once
// The control plane of a job: a star of TCP connections to rank 0, which hosts the store. It carries heartbeats, the
// keys and values of the store, and the one thing that all ranks must learn at once: that a rank failed, and why.
//
//   rank 1 ──┐                     Heartbeats go both ways. A closed connection means a dead rank, a missing heartbeat
//   rank 2 ──┼── rank 0 (store)    a silent one. The first failure is sent to all ranks; each raises it from the call
//   rank 3 ──┘                     that it waits in. Every connection must prove that it knows the token (auth.h).
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/error.h"

namespace lockstep::dist {

/// The settings by which a rank finds its job. Filled by from_environment(), from_url() or spawn().
struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string address = "127.0.0.1";  ///< where rank 0 listens: a host name, IPv4 or IPv6 address
  int port = 29500;                   ///< 0 at rank 0: any free port (tests, file://)
  int listener = -1;             ///< rank 0: a listening socket to take over (from open_listener(); survives a fork)
  std::string file;              ///< file://: rank 0 writes its address, its port and a new token into this file
  std::string job = "lockstep";  ///< name of the job; ranks of another job are refused
  std::string token;             ///< secret of the job; required unless `address` is loopback
  std::string interface;  ///< network interface or subnet to use ("eth0", "10.0.0.0/8", "fd00::/8"); empty: automatic
  std::string transport = "auto";  ///< auto, threads, shm, tcp
  Seconds timeout{600};            ///< limit of one collective, and of rendezvous
  Seconds heartbeat{5};            ///< interval of heartbeats; a rank counts as silent after three without one
  /// Settings that must be equal on all ranks (build, protocol, command line), as key=value lines. If they are not,
  /// Control::join() fails and names the first line that differs.
  std::string identity;

  /// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or the variables of Open MPI or
  /// SLURM; also LOCKSTEP_TOKEN, LOCKSTEP_JOB, LOCKSTEP_TIMEOUT, LOCKSTEP_HEARTBEAT, LOCKSTEP_INTERFACE and
  /// LOCKSTEP_TRANSPORT. Error listing the variables that are unset.
  static Rendezvous from_environment();
  /// Parses "env://", "tcp://host:port?rank=R&world_size=N" or "file:///path?rank=R&world_size=N". Error for any other
  /// URL.
  static Rendezvous from_url(const std::string& url);
};

/// Opens a listening socket for rank 0 before the ranks start (spawn(), tests), so that no other process can take the
/// port in between. If `port` is 0, chooses a free port and stores its number in `port`. Put the returned descriptor
/// into Rendezvous::listener, or close it. Error if the port is in use.
int open_listener(const std::string& address, int& port);
/// A new secret for Rendezvous::token: 32 random bytes as 64 hexadecimal digits.
std::string random_token();

/// A rank's current state: sent along with heartbeats, and quoted in error messages of other ranks.
struct Activity {
  uint64_t step = 0;          ///< training step, if the program reports it (set_step)
  uint64_t completed = 0;     ///< collectives completed in `group`
  std::string group;          ///< group of the current or last collective
  std::string collective;     ///< "all_reduce f32 x 8, tag w1"; the current call if `waiting`, else the last one
  bool is_collective = true;  ///< false for messages, which do not count in `completed`
  bool waiting = false;       ///< true while the rank is inside a call
  int waits_for = -1;         ///< world rank that the current call waits for; -1 if none
  /// In a send or receive: number of the awaited message, counted from 1 for each peer and direction; else 0.
  uint64_t messages = 0;
  bool is_send = false;  ///< used if `messages` > 0; true: this rank waits to send, false: it waits to receive
  /// Numbers of messages started so far, as pairs (world rank, count). sent_to: messages sent to that rank; taken_from:
  /// messages received from it. Empty if messages are not counted.
  std::vector<std::pair<int, uint64_t>> sent_to, taken_from;
};

/// A rank's membership in the job. All methods may be called from any thread.
class Control {
 public:
  /// Joins the job; rank 0 also starts the store. Returns when all ranks have joined. DistError: timeout (it
  /// names the missing ranks), refused (another token, job, world size or identity, or a rank that has joined already),
  /// protocol (another program listens on the port).
  static std::shared_ptr<Control> join(const Rendezvous& rendezvous);
  virtual ~Control() = default;  ///< leaves the job unless it failed

  /// The settings with which this rank joined, except that `heartbeat` is the interval that rank 0 has set.
  virtual const Rendezvous& place() const = 0;
  /// Address under which other hosts reach this rank.
  virtual const std::string& own_address() const = 0;
  /// Name of this rank's host. Ranks that can share memory have the same name; over TCP it is host_identity().
  virtual const std::string& host() const = 0;

  // The store: keys and values
  /// Sets a key. Over TCP: Error if key or value is too long (wire.h), DistError (refused) if the store is full.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key exists and returns its value. Throws DistError (timeout) if it does not exist in time.
  virtual std::string get(const std::string& key, Seconds timeout) = 0;
  /// The value of a key, or nothing if it is not set.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  /// Adds to a counter, which starts at 0, and returns the new value. Over TCP: DistError (refused) if the old value is
  /// no number.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  /// Waits until all `world_ranks` have called barrier() with `name`. Throws DistError (timeout) if some do not call it
  /// in time, and names them: "waited 3 s; missing ranks: 2 (of 0-2)".
  virtual void barrier(const std::string& name, const std::vector<int>& world_ranks, Seconds timeout) = 0;

  // Failures
  /// True if the job has failed, so that raise() would throw. Cheap: executors poll it while they wait.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws the failure that every rank raises. Call it only when failed().
  [[noreturn]] virtual void raise() const = 0;
  /// Reports a failure of this rank, or one that this rank detected, to all ranks. The first report of the job wins.
  /// Returns the failure that was reported first.
  virtual DistError report(Fault fault, int rank, const std::string& message) = 0;

  // Reports about this rank's current call. The rank's heartbeats carry them.
  virtual void begin(const Activity& activity) = 0;  ///< enters a collective
  /// Reports that the current call waits for rank `peer`; deadlocks are found from these reports. While the call waits,
  /// it must repeat the report every renewal() seconds, at the latest after a heartbeat interval, since a report is
  /// valid for two heartbeat intervals only. `messages`: see Activity::messages.
  virtual void waits(int peer, uint64_t messages, bool is_send) = 0;
  /// Interval in seconds at which a collective or message that still waits must repeat waits().
  Seconds renewal() const { return std::min(place().heartbeat, Seconds(0.25)); }
  virtual void end() = 0;  ///< leaves the collective
  /// Sets the training step, which errors and flight records name.
  virtual void set_step(uint64_t step) { step_ = step; }
  /// The step set last.
  uint64_t step() const { return step_; }
  /// Returns a phrase about the state of each of these ranks, for the message of a timeout. Over TCP, asks the store.
  virtual std::string explain(const std::vector<int>& world_ranks) = 0;
  /// Leaves the job: other ranks must not wait for this one any more. Waits until rank 0 has acknowledged. Idempotent.
  virtual void leave() = 0;
  /// Leaves the jobs that this process joined by join(), and sends what is still to be sent. exit() calls it.
  static void leave_all();

 protected:
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> step_{0};
};

}  // namespace lockstep::dist
