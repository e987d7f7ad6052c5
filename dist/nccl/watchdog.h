#pragma once
// NCCL communicators, and the watchdog: one thread that supervises all NCCL calls of a rank.
//
//   caller's stream ──ready──┐                            ┌──▶ wait(): the stream continues after `end`; the host does
//                            │                            │    not wait
//   group's stream  ─────────┴──▶ ncclAllReduce ──end─────┘
//                                      ▲
//   watchdog ──────────────────────────┘   polls `end` and ncclCommGetAsyncError, the timeout, and failures of others
//
// Communicators are non-blocking, since blocking ones cannot be aborted. While one is being aborted, no other thread
// may be in an NCCL call on it, so every call on it is made under its mutex. On an error, a timeout, or a failure of
// another rank, the watchdog writes the flight record, marks the device's results as untrusted, and aborts all
// communicators of this rank. If an abort hangs, the process ends (deadman.h). An error of the device itself, found
// when the watchdog asks whether a call is done, fails the job in the same way.
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/call_queue.h"
#include "dist/job.h"
#include "dist/nccl/deadman.h"
#include "dist/work.h"
#include "tensor/stream.h"

namespace lockstep::dist {

/// Error unless `code` is success or in progress. `what`: name of the call, for the message.
void check_nccl(ncclResult_t code, const char* what, ncclComm_t comm);

/// An NCCL communicator of this rank.
class Communicator {
 public:
  /// Starts to create the communicator and returns at once. Watchdog::wait_ready() waits until it can be used.
  Communicator(const ncclUniqueId& id, int size, int rank, Device device, std::string name,
               std::vector<int> world_ranks);
  Communicator(const Communicator&) = delete;

  /// NCCL's handle; null after an abort. Call with the mutex held.
  ncclComm_t handle() const { return comm_; }

 private:
  friend class Watchdog;
  const Device device_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

/// A running call on a device.
class NcclWork final : public DeviceWork {
 public:
  /// Begins a call: records the event ready() on the thread's current stream.
  NcclWork(Control& control, const Call& call, Device device);
  bool done() const override { return begun_ && end_.done(); }
  void wait() override;
  void synchronize() override;

  const Event& ready() const { return ready_; }  ///< recorded when the call's tensors are ready
  /// Ends the call: records an event on the thread's current stream. done() is true once the device has reached it.
  void end();

 private:
  friend class Watchdog;
  Control& control_;
  const Device device_;
  Event ready_, end_;
  std::atomic<bool> begun_{false};  // true once end_ has been recorded
  Call call_;                       // keeps its tensors alive; those of an `awaited` call until wait()
  // For the watchdog, set by watch()
  std::string what_;
  std::optional<uint64_t> ticket_;  // entry of the flight record to complete
  Seconds timeout_{0};
  Activity activity_;
  CallQueue* call_queue_ = nullptr;
  int neighbour_ = -1;
  std::chrono::steady_clock::time_point started_, reported_;  // reported_: time of the last report of a late call
};

/// Supervises the NCCL calls of one rank.
class Watchdog {
 public:
  /// Starts the thread.
  explicit Watchdog(Job& job);
  ~Watchdog();
  /// The watchdog of a job, created at the first call.
  static std::shared_ptr<Watchdog> of(Job& job);

  /// Registers that this rank uses the device.
  void use(Device device);
  void add(const std::shared_ptr<Communicator>& comm);  ///< checks the communicator for errors from now on
  /// Makes NCCL calls on communicators, and returns once NCCL has queued them all. Throws DistError.
  void run(const std::vector<Communicator*>& comms, Seconds timeout, const std::string& what,
           const std::function<void()>& calls);
  /// Waits until NCCL has finished the last operation on the communicator. Throws DistError.
  void wait_ready(Communicator& comm, Seconds timeout, const std::string& what);
  /// Supervises a call from now on. `complete`: false if an error came before the whole call was queued. `what`: the
  /// call's name in messages. `neighbour`: a world rank that the call waits for, to be named if the call is late.
  void watch(const std::shared_ptr<NcclWork>& work, bool complete, const std::string& what, const Call& call,
             CallQueue& call_queue, int neighbour);
  /// True if no call from `call_queue`, the queue of one group's calls, is running.
  bool idle(const CallQueue& call_queue) const;
  /// Waits until no call of the group runs. Then closes the communicators, or aborts them if that takes too long.
  void close(const CallQueue& call_queue, const std::vector<std::shared_ptr<Communicator>>& comms);

 private:
  using Works = std::vector<std::shared_ptr<NcclWork>>;
  void loop();
  Works look(const Works& works, const std::vector<std::shared_ptr<Communicator>>& comms);
  void look_at_late(NcclWork& work);
  void give_up(std::exception_ptr error);
  void abort(Communicator& comm, pthread_t waits = pthread_self());
  void finalize(Communicator& comm);
  static std::exception_ptr error_of(ncclResult_t code, const Communicator& comm, const std::string& where);

  Job& job_;
  const Seconds abort_limit_;  // LOCKSTEP_NCCL_ABORT_TIMEOUT
  Deadman deadman_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Works works_;  // running works, in the order of the calls
  std::vector<std::shared_ptr<Communicator>> comms_;
  std::vector<Device> used_;
  std::shared_ptr<NcclWork> reported_;  // the call that was reported as late to the control plane
  bool stop_ = false;
  std::vector<Device> distrusted_;  // only the watchdog's thread uses this and the next member
  std::optional<std::chrono::steady_clock::time_point> given_up_;
  std::thread thread_;  // last: started after all other members are constructed
};

}  // namespace lockstep::dist
