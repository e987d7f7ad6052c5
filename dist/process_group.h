#pragma once
// Process groups: a set of ranks, and the collectives among them. There are native groups (threads, shared memory, TCP;
// NCCL for tensors on CUDA devices) and those that a program adds (job.h), with the same interface and the same tests.
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

#include "dist/collective.h"
#include "dist/error.h"
#include "tensor/tensor.h"

namespace lockstep::dist {

class Control;      // control.h
struct Rendezvous;  // control.h
class DeviceWork;

/// A handle of a collective that may still be running. Copies refer to the same collective.
class Work {
 public:
  Work() = default;   ///< a handle of a completed collective
  bool done() const;  ///< true once the call has ended, with results or with an error
  /// Returns when the call's tensors hold the results and may be reused; rethrows an exception of the collective. For
  /// tensors on a device, it only orders work queued later on this thread's current stream after the collective; the
  /// host does not wait for the device.
  void wait();
  /// Like wait(), but the host waits too, until the device has finished.
  void synchronize();
  /// Sets a function that the first wait() calls when the collective is done; at once if this Work stands for none.
  void then(std::function<void()> finish);

  struct State;
  /// A handle with the given state.
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// A handle of a call on a device. `host`: the part of the call that runs on the host; `device`: the rest.
  Work(const Work& host, std::shared_ptr<DeviceWork> device);

 private:
  std::shared_ptr<State> state_;
};

/// Options that all collectives take.
struct CollectiveOptions {
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  std::string_view tag = {};  ///< name of the data, part of the fingerprint: detects ranks that swap two collectives
  bool async = false;         ///< true: run on the group's own thread, in the order of the calls
  /// For send and receive: if set, the control plane regards this rank as waiting only while *awaited is true. So a
  /// receive that is posted while the rank still computes does not look like a deadlock. If set for a tensor on a
  /// device, Work::wait() also releases the group's reference to the tensor; call wait() while the stream that made the
  /// tensor is current.
  std::shared_ptr<const std::atomic<bool>> awaited = {};
};

/// One send or receive of a batched exchange.
struct PointToPoint {
  bool is_send = true;
  Tensor tensor;
  int peer = 0;
  std::string tag = {};
  int world_peer = 0;  ///< world rank of the peer; set by exchange()
};

/// Payload bytes (without headers) that this rank moved through a group. Tests compare them with formulas.
struct Traffic {
  int64_t sent = 0;
  int64_t received = 0;
  int64_t messages = 0;
  int64_t collectives = 0;
  /// Number of collectives on tensors in shared memory. Their bytes are counted above as if they had been sent.
  int64_t in_place = 0;
};

/// A call whose arguments have been checked, as ProcessGroup::run() receives it.
struct Call {
  Collective collective = Collective::barrier;
  Tensor input;   ///< this rank's input; undefined if it has none
  Tensor output;  ///< result; the same tensor as `input` when in place
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  int root = 0;        ///< the root, or the peer of a send or receive
  int world_root = 0;  ///< world rank of `root`, for messages and fingerprints
  int64_t count = 0;   ///< elements of the whole tensor; -1 in gather and scatter where only the root knows it
  DType dtype = f32;
  std::string tag;
  std::vector<PointToPoint> batch;
  std::shared_ptr<const std::atomic<bool>> awaited;
  Seconds timeout{0};
  std::shared_ptr<DeviceWork> work;  ///< set when NCCL moves the tensors
  uint64_t ticket = 0;               ///< entry of the flight record
  std::function<void()> launch;      ///< replays only: launches the graph

  std::string describe() const;  ///< text for messages: "all_reduce f32 x 8, tag w1"
};

/// A rank's membership in a group.
struct Membership {
  std::string id;    ///< unique in the job, equal on all ranks of the group
  std::string name;  ///< "world", "dp", "pp.1", ...
  int rank = 0;
  std::vector<int> world_ranks;
};

/// A set of ranks with its collectives; the base class of native and of added groups.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;

  int rank() const { return member_.rank; }                     ///< rank of this process in the group
  int size() const { return int(member_.world_ranks.size()); }  ///< number of ranks
  const std::string& name() const { return member_.name; }      ///< "world", "dp", ...
  /// The world rank of a rank of this group.
  int world_rank(int rank) const { return member_.world_ranks.at(size_t(rank)); }
  /// The world rank of each rank of this group.
  const std::vector<int>& world_ranks() const { return member_.world_ranks; }
  virtual const char* engine() const = 0;  ///< "native", or the name of an added backend
  /// The engine for tensors that are not on the CPU: "nccl", or "host" if they are copied through host memory.
  virtual const char* device_engine() const { return "host"; }

  // Collectives. All tensors of a call must be contiguous, of one dtype and on one device.
  //
  // If device_engine() is "nccl", tensors on a device are moved by NCCL, in the order of the current stream; each rank
  // must use one device for all calls of a group. If it is "host", they are copied to the host, which waits for the
  // pending work of the device. While the thread records a graph, calls by NCCL become part of the graph. The first
  // call between given ranks cannot be recorded: it is an Error.
  //
  // Results are bitwise equal on all ranks. A group of one rank copies input to output; in place it does nothing. Error
  // for invalid arguments, before any data moves. DistError when ranks make different calls, fail, or do not make the
  // call in time; the group is unusable afterwards.
  /// output = the reduction of all ranks' inputs, by o.op.
  Work all_reduce(const Tensor& data, const CollectiveOptions& o = {}) { return all_reduce(data, data, o); }
  Work all_reduce(const Tensor& output, const Tensor& input, const CollectiveOptions& o);
  /// Copies the root's data to all ranks.
  Work broadcast(const Tensor& data, int root, const CollectiveOptions& o = {});
  /// Reduces to the root. The contents of `data` on other ranks are unspecified afterwards.
  Work reduce(const Tensor& data, int root, const CollectiveOptions& o = {});
  /// Concatenates all ranks' parts, by rank, into `full`. Each `part` is as large as the slice of `full` that
  /// shard_range() gives the rank. `part` may be this slice itself: then the call works in place.
  Work all_gather(const Tensor& full, const Tensor& part, const CollectiveOptions& o = {});
  /// Reduces `full` over all ranks. Each rank gets in `part` the slice of the result that shard_range() gives it.
  Work reduce_scatter(const Tensor& part, const Tensor& full, const CollectiveOptions& o = {});
  /// Collects the parts at the root. `full` is used at the root only.
  Work gather(const Tensor& full, const Tensor& part, int root, const CollectiveOptions& o = {});
  /// Sends each rank its part of the root's `full`.
  Work scatter(const Tensor& part, const Tensor& full, int root, const CollectiveOptions& o = {});
  /// Part j of `input` goes to rank j, part i of `output` comes from rank i. size() must divide the number of elements.
  Work all_to_all(const Tensor& output, const Tensor& input, const CollectiveOptions& o = {});
  /// An all_to_all with parts of different sizes: `to_each` and `from_each` give the number of rows (dim 0) for each
  /// rank. DistError if sender and receiver disagree on a number. Implemented as an exchange of messages.
  Work all_to_all(const Tensor& output, const std::vector<int64_t>& from_each, const Tensor& input,
                  const std::vector<int64_t>& to_each, const CollectiveOptions& o = {});
  /// Sends to rank `peer` of the group, which must call receive() with the same dtype, count and tag.
  Work send(const Tensor& data, int peer, const CollectiveOptions& o = {});
  /// Receives from rank `peer`. Messages from one rank to another arrive in the order in which they were sent.
  Work receive(const Tensor& data, int peer, const CollectiveOptions& o = {});
  /// Sends and receives concurrently, so that neighbours may swap data without a deadlock.
  Work exchange(std::vector<PointToPoint> batch, const CollectiveOptions& o = {});
  /// Waits until all ranks have called barrier(). After `timeout` (0: the job's timeout), throws a DistError that names
  /// the missing ranks.
  void barrier(Seconds timeout = Seconds{0}, std::string_view tag = {});

  /// The collectives and messages of this group that this thread has recorded into a graph (tensor/graph.h) since it
  /// last called take_recorded(), in order. The caller must make sure that all ranks record the same ones: ranks do
  /// not compare them while recording.
  virtual std::vector<std::string> take_recorded() { return {}; }
  /// Runs a graph that repeats `calls`: calls `launch`, which launches the graph. For a graph with calls of several
  /// groups, `launch` calls the next group's replay(), and the last one launches. All ranks must call replay(). A
  /// replay is checked and times out like one call of the group. traffic() counts each collective in the graph.
  virtual void replay(const std::vector<std::string>& calls, const std::function<void()>& launch);

  /// A new, uninitialised tensor in memory that the other ranks of this host can access. all_reduce, broadcast,
  /// reduce_scatter and all_gather work on such tensors directly, without copies between ranks, if all ranks of the
  /// group are on one host and each (broadcast: the root) passes such a tensor or a slice of one as `data` or `full`.
  /// Otherwise they copy, with the same results. On a device, or if no other rank can access this rank's memory, the
  /// tensor is an ordinary one. Ranks may create them at any time. Each uses a file descriptor and pages: create few.
  virtual Tensor shared_empty(const Shape& shape, DType dtype = f32, Device device = cpu);

  /// Creates a group from some ranks of this group. All ranks of this group must call it, at the same place in the
  /// order of their calls. Returns nullptr on ranks that are not in `ranks`.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks, const std::string& name);
  /// Splits this group: ranks that pass the same `color` form a group NAME.COLOR, ordered by (key, rank). A rank with a
  /// negative color gets nullptr. All ranks must call it.
  std::shared_ptr<ProcessGroup> split(int color, int key, const std::string& name);

  const Traffic& traffic() const { return *traffic_; }  ///< bytes moved so far
  virtual Control& control() = 0;                       ///< control plane of the job

 protected:
  explicit ProcessGroup(Membership member) : member_(std::move(member)) {}
  /// True if run() accepts tensors that are not on the CPU.
  virtual bool moves_device_memory() const { return false; }
  /// Runs a call whose arguments have been checked, synchronously or (async) on the group's thread.
  virtual Work run(Call call, bool async) = 0;
  /// Creates the group for new_group(). Called on its members only, after all ranks have agreed on `ranks`.
  virtual std::shared_ptr<ProcessGroup> make_group(Membership member, const std::vector<int>& ranks) = 0;

  // Shared with running calls, which may outlive the group.
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();

 private:
  void check_rank(Collective collective, const char* role, int rank) const;
  void check_peer(Collective collective, int peer, const char* role, const Tensor& data) const;
  Work run_anywhere(Call call, bool async);
  Work call(Collective collective, const Tensor& output, const Tensor& input, int64_t count, int root,
            const CollectiveOptions& o);

  Membership member_;
  uint64_t groups_ = 0;  // number of groups created from this one
};

/// Joins the job described by the environment, and sets the world of this process (or of this thread, for ranks made by
/// spawn()). Error when called twice. `backend`: auto (NCCL for tensors on CUDA devices if this build has it and no two
/// ranks share a device), nccl (the same, but an Error if NCCL cannot be used), native (tensors on devices go through
/// host memory), or the name of a backend that add_backend() added.
ProcessGroup& init(const std::string& url = "env://", const std::string& backend = "auto");
ProcessGroup& init(const Rendezvous& rendezvous, const std::string& backend = "auto");
/// True between init() and shutdown(), and inside spawn().
bool is_initialized();
/// The group of all ranks. Error before init().
ProcessGroup& world();
/// Leaves the job. Runs automatically at the end of main() or in exit(); a process that ends otherwise (a crash,
/// _exit()) is reported as failed by the other ranks.
void shutdown();
/// Sets this rank's training step, which errors and flight records name.
void set_step(uint64_t step);
/// Runs the body of a rank. An exception that leaves it is reported, so that every rank raises it, and rethrown. One
/// that nobody catches is reported without guard(), before the process ends.
void guard(const std::function<void()>& body);

/// Collective. Starts tracing on every rank, with the clock offsets; see trace::start(). If ranks are threads, each
/// thread writes its own file.
void start_trace(const std::string& folder, ProcessGroup& group, int64_t limit_bytes = int64_t(1) << 30);
/// Collective. Measures the clocks again, to record their drift, and ends the trace. After a failure of the job, call
/// trace::stop() instead.
void stop_trace(ProcessGroup& group);

/// The world as a grid with named axes, the last axis varying fastest: mesh({{"pp", 2}, {"dp", 4}}). There is a group
/// for each axis.
class GroupMesh {
 public:
  /// Collective. Error unless the sizes of the axes multiply to world.size().
  GroupMesh(ProcessGroup& world, std::vector<std::pair<std::string, int>> axes);
  /// The group of the ranks that have this rank's coordinates on all other axes. Error if no axis is called `axis`.
  ProcessGroup& group(const std::string& axis) const;
  int coordinate(const std::string& axis) const;  ///< this rank's coordinate along `axis`
  int size(const std::string& axis) const;        ///< number of ranks along `axis`

 private:
  std::vector<std::pair<std::string, int>> axes_;
  std::vector<int> coordinates_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
};

/// Options of spawn().
struct SpawnOptions {
  /// Ranks are threads of this process, or forked processes.
  enum class Kind { threads, processes } kind = Kind::threads;
  std::string transport = "auto";  ///< auto, threads (with Kind::threads only), shm, tcp
  std::string backend = "auto";    ///< auto, native or nccl, as for init()
  Seconds timeout{600};            ///< longest time of a collective, as Rendezvous::timeout
  Seconds heartbeat{5};
};
/// Runs fn(rank) on n ranks that form a world, as threads of this process or forked processes. The first failure stops
/// the other ranks and is thrown here, naming its rank. Ranks that are threads divide the get_threads() compute threads
/// among themselves. Ranks that are processes have one compute thread each (the OpenMP runtime does not survive a
/// fork); start them before this process creates threads of its own.
void spawn(int n, const std::function<void(int rank)>& fn, const SpawnOptions& options = {});

}  // namespace lockstep::dist
