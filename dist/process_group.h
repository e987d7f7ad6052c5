#pragma once
// Process groups: the ranks that take part in a collective, and the collectives. Native (threads, shared memory, TCP;
// NCCL for tensors on CUDA devices) or MPI: the same class, the same tests.
//
//   dist::init();                                  // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   auto& world = dist::world();
//   world.all_reduce(gradient, {.op = dist::ReduceOp::mean, .tag = "layer1.weight"});
//   auto work = world.all_reduce(bucket, {.async = true});  ...  work.wait();
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/control.h"
#include "dist/reduce.h"
#include "dist/schedule.h"
#include "dist/shard.h"
#include "tensor/tensor.h"

namespace lockstep::dist {

class DeviceWork;

/// A collective that may still run. Every copy speaks of the same one.
class Work {
 public:
  Work() = default;  ///< done
  bool done() const;
  /// Returns when the tensors given to it hold the results and are free again; throws what the collective threw. For
  /// tensors on a device that means: to what the thread's current stream is given from now on. This thread does not
  /// wait for the device.
  void wait();
  /// The same, and waits until the device is done with it too.
  void synchronize();
  /// What the first wait() does at its end; at once for a default Work.
  void then(std::function<void()> finish);

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// One whose host part is `host`.
  Work(const Work& host, std::shared_ptr<DeviceWork> device);

 private:
  std::shared_ptr<State> state_;
};

struct CollectiveOptions {
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  std::string_view tag = {};  ///< what is moved, part of the fingerprint: ranks that swap two collectives are told
  bool async = false;         ///< runs on the group's own thread, in the order of the calls
  /// Send and receive: somebody waits for it only while this is true. A receive that was posted ahead, while its rank
  /// computes, then does not count when ranks that wait in a circle are looked for. On a device, its tensor belongs to
  /// the caller alone after Work::wait(), which is to be called with the stream on which the tensor was made.
  std::shared_ptr<const std::atomic<bool>> awaited = {};
};

/// One half of a batched exchange.
struct PointToPoint {
  bool is_send = true;
  Tensor tensor;
  int peer = 0;
  std::string tag = {};
  int world_peer = 0;  ///< its rank in the world; set by exchange()
};

/// Bytes of data (headers not counted) that this rank moved through a group. Tests hold them against formulas.
struct Traffic {
  int64_t sent = 0;
  int64_t received = 0;
  int64_t messages = 0;
  int64_t collectives = 0;
  int64_t in_place =
      0;  ///< collectives done on tensors in shared memory; the bytes are counted as if they had been sent
};

/// One call, checked, as engines see it.
struct Call {
  Collective collective = Collective::barrier;
  Tensor input;   ///< what this rank gives; undefined where it gives nothing
  Tensor output;  ///< where the result goes; the same tensor as input when in place
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  int root = 0;        ///< or the peer of send and receive
  int world_root = 0;  ///< its rank in the world, for messages and fingerprints
  int64_t count = 0;   ///< elements of the whole; -1 for gather and scatter where only the root knows
  DType dtype = f32;
  std::string tag;
  std::vector<PointToPoint> batch;
  std::shared_ptr<const std::atomic<bool>> awaited;
  Seconds timeout{0};
  std::shared_ptr<DeviceWork> work;  ///< when NCCL moves its tensors
  uint64_t ticket = 0;               ///< in the flight record
  std::function<void()> launch;      ///< of a replay: starts the graph

  std::string describe() const;  ///< "all_reduce f32 x 8, tag w1"
};

/// A rank's place in a group.
struct Membership {
  std::string id;    ///< unique in the job, the same on all ranks of the group
  std::string name;  ///< "world", "dp", "pp.1", ...
  int rank = 0;
  std::vector<int> world_ranks;
};

class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;

  int rank() const { return member_.rank; }
  int size() const { return int(member_.world_ranks.size()); }
  const std::string& name() const { return member_.name; }
  /// The rank in the world of a rank of this group.
  int world_rank(int rank) const { return member_.world_ranks.at(size_t(rank)); }
  const std::vector<int>& world_ranks() const { return member_.world_ranks; }
  virtual const char* engine() const = 0;  ///< "native", "mpi"
  /// What moves tensors that are not on the CPU: "nccl", or "host" where they go through its memory.
  virtual const char* device_engine() const { return "host"; }

  // Every tensor must be contiguous, of one dtype, on one device. With device_engine() nccl one on a device is moved
  // there, in the order of the thread's current stream; all those of a group must be on one device of each rank.
  // Otherwise it goes through a copy on the host, which waits for what its device still does. While the thread records
  // a graph, what NCCL moves is put into it, but not the first call between ranks. Results are equal on all
  // ranks to the bit. A group of one copies, and does nothing in place. Errors: Error for a wrong call (nothing was
  // moved); DistError when ranks disagree, fail or do not come: then the group is over.
  Work all_reduce(const Tensor& data, const CollectiveOptions& o = {}) { return all_reduce(data, data, o); }
  Work all_reduce(const Tensor& output, const Tensor& input, const CollectiveOptions& o);
  Work broadcast(const Tensor& data, int root, const CollectiveOptions& o = {});
  /// Only the root's `data` holds the result; elsewhere it is left unspecified.
  Work reduce(const Tensor& data, int root, const CollectiveOptions& o = {});
  /// part: this rank's shard_range() of whole's elements. In place when `part` is that part of `whole`.
  Work all_gather(const Tensor& whole, const Tensor& part, const CollectiveOptions& o = {});
  Work reduce_scatter(const Tensor& part, const Tensor& whole, const CollectiveOptions& o = {});
  /// `whole` is needed at the root only.
  Work gather(const Tensor& whole, const Tensor& part, int root, const CollectiveOptions& o = {});
  Work scatter(const Tensor& part, const Tensor& whole, int root, const CollectiveOptions& o = {});
  /// Part j of input goes to rank j; part i of output comes from rank i. Sizes must divide by size().
  Work all_to_all(const Tensor& output, const Tensor& input, const CollectiveOptions& o = {});
  /// The same with parts of any size: `to_each` and `from_each` count rows of dim 0, a number for every rank. Both ends
  /// must agree (ranks that do not get an error). An exchange of messages.
  Work all_to_all(const Tensor& output, const std::vector<int64_t>& from_each, const Tensor& input,
                  const std::vector<int64_t>& to_each, const CollectiveOptions& o = {});
  Work send(const Tensor& data, int peer, const CollectiveOptions& o = {});
  Work receive(const Tensor& data, int peer, const CollectiveOptions& o = {});
  /// Sends and receives at the same time, so that neighbours may swap in any order.
  Work exchange(std::vector<PointToPoint> batch, const CollectiveOptions& o = {});
  /// Names who is missing when it takes longer than `timeout` (0: the group's). `tag` as in CollectiveOptions.
  void barrier(Seconds timeout = Seconds{0}, std::string_view tag = {});

  /// Calls of this group that this thread has put into a graph (tensor/graph.h) since it was asked last, in their
  /// order. Whoever records sees to it that all ranks have the same ones: while they record they do not compare them.
  virtual std::vector<std::string> take_recorded() { return {}; }
  /// Starts a graph that repeats these: one call of the group, which all ranks make, compared, watched and limited in
  /// time as others are. Waits as Work::wait() does. traffic() counts the collectives. A graph with collectives of
  /// several groups: `launch` is the replay of the next one.
  virtual void replay(const std::vector<std::string>& calls, const std::function<void()>& launch);

  /// A tensor, uninitialised, on which all_reduce, reduce_scatter (its `whole`), all_gather (its `whole`) and broadcast
  /// work where it lies, without copies from rank to rank, when all ranks of the group are on one host and every rank
  /// (broadcast: the root) gives such a tensor or a part of one. Elsewhere an ordinary tensor.
  /// The same results either way. No other rank needs to make one at the same time. Each takes an open file; pages are
  /// as in a file, so it is meant for what lasts.
  ///
  /// On a device, where NCCL moves tensors, a window of it (nccl/window.h): all ranks make it at the same point and of
  /// one size, and give the same part of it to the same collectives.
  virtual Tensor shared_empty(const Shape& shape, DType dtype = f32, Device device = cpu);

  /// New groups are made by all ranks of this one, in the same order. nullptr for ranks that are not in it.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const std::string& name);
  /// Ranks of equal colour form a group NAME.COLOUR, ordered by (key, rank). A negative colour gets nullptr.
  std::shared_ptr<ProcessGroup> split(int color, int key, const std::string& name);

  const Traffic& traffic() const { return *traffic_; }
  virtual Control& control() = 0;

 protected:
  explicit ProcessGroup(Membership member) : member_(std::move(member)) {}
  /// Whether run() takes tensors that are not on the CPU.
  virtual bool moves_device_memory() const { return false; }
  /// Runs a checked call, now or (async) on the group's thread.
  virtual Work run(Call call, bool async) = 0;
  /// The last part of new_group(), on its members: all have agreed on the same `ranks` of this group.
  virtual std::shared_ptr<ProcessGroup> make_group(Membership member, const std::vector<int>& ranks) = 0;

  std::shared_ptr<Traffic> traffic_ =
      std::make_shared<Traffic>();  // shared with what still runs when the group is gone

 private:
  void check_rank(Collective collective, const char* role, int rank) const;
  void check_peer(Collective collective, int peer, const char* role, const Tensor& data) const;
  Work run_anywhere(Call call, bool async);
  Work call(Collective collective, const Tensor& output, const Tensor& input, int64_t count, int root,
            const CollectiveOptions& o);

  Membership member_;
  uint64_t groups_ = 0;  // made of this one so far
};

/// Joins the job that the environment names and makes its world group that of this process (of this thread, for ranks
/// made by spawn()). Error when called twice. `backend`: auto (NCCL for tensors on CUDA devices, where this build has
/// it and no two ranks share a device), nccl (the same, and an Error where that cannot be), native (they go through the
/// host), mpi.
ProcessGroup& init(const std::string& url = "env://", const std::string& backend = "auto");
ProcessGroup& init(const Rendezvous& rendezvous, const std::string& backend = "auto");
bool is_initialized();
/// The group of all ranks. Error before init().
ProcessGroup& world();
/// Leaves the job in order. Called by itself at the end of main(); a process that ends without (a crash, exit()) is
/// reported by the others.
void shutdown();
/// Training step that this rank is in: errors and flight records name it.
void set_step(uint64_t step);
/// Runs the body of a rank: an exception that leaves it becomes the error that every rank raises, and is thrown on.
void guard(const std::function<void()>& body);

/// The world as a grid with named axes, last axis fastest: mesh({{"pp", 2}, {"dp", 4}}). A group per axis.
class Mesh {
 public:
  Mesh(ProcessGroup& world, std::vector<std::pair<std::string, int>> axes);
  ProcessGroup& group(const std::string& axis) const;  ///< Error names the axes
  int coordinate(const std::string& axis) const;
  int size(const std::string& axis) const;

 private:
  std::vector<std::pair<std::string, int>> axes_;
  std::vector<int> coordinates_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
};

struct SpawnOptions {
  enum class Kind { threads, processes } kind = Kind::threads;
  std::string transport = "auto";  ///< threads (threads only), shm, tcp
  std::string backend = "auto";    ///< auto, native, nccl, as for init()
  Seconds timeout{600};
  Seconds heartbeat{5};
};
/// Runs fn(rank) on n ranks that form a world: threads of this process, or forked processes. The first failure stops
/// the rest and is thrown here with its rank. Threads share the threads that operations may use. Processes use one each
/// (the OpenMP runtime does not survive a fork), and are to be made before this process starts threads of its own.
void spawn(int n, const std::function<void(int rank)>& fn, const SpawnOptions& options = {});

}  // namespace lockstep::dist
