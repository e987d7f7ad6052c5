#pragma once
// What holds a job together: a star of TCP connections to rank 0, which hosts the store. It carries keys and values for
// rendezvous, heartbeats, and the one thing that all ranks must learn at once: that somebody failed, and why.
//
//   rank 1 ──┐                      heartbeats up and down; a closed connection is a dead rank, a quiet one is silent.
//   rank 2 ──┼── rank 0 (store)     The first failure is sent to everybody; each rank raises it from whatever it is
//   rank 3 ──┘                      waiting in. Strangers must answer a challenge with the job's token (auth.h).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/error.h"

namespace lockstep::dist {

using Seconds = std::chrono::duration<double>;

/// How a rank finds its job. from_environment() fills it; spawn() and the launcher do too.
struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string address = "127.0.0.1";  ///< where rank 0 listens: a name, IPv4 or IPv6 address
  int port = 29500;                   ///< 0 at rank 0: any free port (tests, file://)
  int listener = -1;             ///< rank 0: a socket that listens already, taken over (open_listener(); survives fork)
  std::string file;              ///< file://: rank 0 writes address, port and a fresh token there
  std::string job = "lockstep";  ///< a process of another job is refused
  std::string token;             ///< secret of the job; needed when `address` is not loopback
  std::string interface;         ///< network interface name or subnet ("eth0", "10.0.0.0/8", "fd00::/8"); empty: chosen
  std::string transport = "auto";  ///< auto, threads, shm, tcp
  Seconds timeout{600};            ///< limit of one collective, and of rendezvous
  Seconds heartbeat{5};            ///< a rank is silent after three
  /// What must be equal on all ranks (build, protocol, command line); key=value lines, the first that differs is named.
  std::string identity;

  /// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, or Open MPI's or SLURM's variables;
  /// LOCKSTEP_TOKEN, LOCKSTEP_JOB, LOCKSTEP_TIMEOUT, LOCKSTEP_HEARTBEAT, LOCKSTEP_INTERFACE, LOCKSTEP_TRANSPORT.
  /// Error listing exactly the variables that are unset.
  static Rendezvous from_environment();
  /// "env://", "tcp://host:port?rank=R&world_size=N", "file:///path?rank=R&world_size=N".
  static Rendezvous from_url(const std::string& url);
};

/// A listening socket for rank 0, made before the ranks are (spawn(), tests): nobody else can take the port in between.
/// `port`: 0 for any, the one found on return. Give the descriptor to Rendezvous::listener, or close it. Error: port in
/// use.
int open_listener(const std::string& address, int& port);

/// What a rank is doing: sent along with heartbeats, told to others when something goes wrong.
struct Activity {
  uint64_t step = 0;          ///< training step, when the program says so (set_step)
  uint64_t completed = 0;     ///< collectives completed in `group`
  std::string group;          ///< group of the collective that it is in, or was in last
  std::string collective;     ///< "all_reduce f32 x 8, tag w1"; with `waiting` the one it is in
  bool is_collective = true;  ///< false: messages, which do not count in `completed`
  bool waiting = false;
  int waits_for = -1;     ///< world rank that it needs something from
  uint64_t messages = 0;  ///< point to point: how many from (receive) or taken by (send) that rank it needs; else 0
  bool is_send = false;
  /// Point to point messages so far, by world rank: begun to be sent to it, and to be taken from it. May be empty (not
  /// counted): a circle of waits is then believed when nothing in it moves for three heartbeats.
  std::vector<std::pair<int, uint64_t>> sent_to, taken_from;
};

/// A rank's seat in the job. All methods may be called from any thread.
class Control {
 public:
  /// Joins the job; rank 0 also starts the store. Returns when all ranks are there. DistError: timeout naming the
  /// missing ranks, refused (token, job, world size, rank twice, identity), protocol (something else listens on the
  /// port).
  static std::shared_ptr<Control> join(const Rendezvous& rendezvous);
  virtual ~Control() = default;  ///< leaves, unless it failed

  virtual const Rendezvous& place() const = 0;
  /// Address under which other hosts reach this rank, and a name for its host that equals that of ranks it can share
  /// memory with (boot id, network namespace).
  virtual const std::string& own_address() const = 0;
  virtual const std::string& host() const = 0;

  // The store
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is there. DistError timeout naming the key.
  virtual std::string get(const std::string& key, Seconds timeout) = 0;
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  /// Adds to a counter (from 0); gives back the new value.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  /// Waits for `count` ranks at the same name. DistError timeout: "waited 3 s; missing ranks: 2 (of 0-2)".
  virtual void barrier(const std::string& name, const std::vector<int>& world_ranks, Seconds timeout) = 0;

  // Failures
  /// Cheap: whether raise() would throw. Executors look at it while they wait.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws the failure that every rank raises.
  [[noreturn]] virtual void raise() const = 0;
  /// Tells everybody that this rank failed, or what it found out; the first report wins. Gives back the one that won.
  virtual DistError report(Fault fault, int rank, const std::string& message) = 0;

  // What this rank does; read by the heartbeat.
  virtual void begin(const Activity& activity) = 0;  ///< enters a collective
  /// Called after renewal() without progress, and again while there is none: a wait that is not renewed for two
  /// heartbeats no longer counts. `messages`: see Activity; 0 messages inside collectives of a whole group.
  virtual void waits(int peer, uint64_t messages, bool is_send) = 0;
  Seconds renewal() const { return std::min(place().heartbeat, Seconds(0.25)); }
  virtual void end() = 0;  ///< the collective is done
  /// The training step, for errors and flight records.
  virtual void set_step(uint64_t step) { step_ = step; }
  uint64_t step() const { return step_; }
  /// One sentence about who is where, for a timeout: asks the store what the other ranks do.
  virtual std::string explain(const std::vector<int>& world_ranks) = 0;
  /// This rank is done: others may not wait for it any more. Waits until rank 0 knows. Idempotent.
  virtual void leave() = 0;

 protected:
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> step_{0};
};

}  // namespace lockstep::dist
