#pragma once
// Communicators of NCCL, and the one thread that looks after everything that a rank has on its way in them.
//
//   caller      ──ready──┐                     ┌──▶ wait(): the stream goes on after `end`; the host does not wait
//   stream of   ─────────┴─▶ ncclAllReduce ──end─
//   the group                    ▲
//   watchdog                     └ polls `end` and ncclCommGetAsyncError; deadline; failures of other ranks
//
// Communicators are non-blocking, since others cannot be aborted. While one is aborted no other thread may be inside
// NCCL with it, so every call on it is made under its mutex. On an error, a timeout, or when another rank has failed:
// flight record, the device's results are distrusted, every communicator of this rank is aborted. When that hangs too,
// the process ends (deadman.h).
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

#include "dist/job.h"
#include "dist/nccl/deadman.h"
#include "dist/turns.h"
#include "dist/work.h"
#include "tensor/stream.h"

namespace lockstep::dist {

/// Throws Error unless it is success or in progress.
void check_nccl(ncclResult_t code, const char* what, ncclComm_t comm);

/// Ranks that talk through NCCL.
class Communicator {
 public:
  /// Returns at once; see Watchdog::settle().
  Communicator(const ncclUniqueId& id, int size, int rank, Device device, std::string name,
               std::vector<int> world_ranks);
  Communicator(const Communicator&) = delete;

  const std::string& name() const { return name_; }  ///< for messages
  Device device() const { return device_; }
  std::mutex& mutex() { return mutex_; }
  /// Under the mutex; null when it was given up.
  ncclComm_t handle() const { return comm_; }
  // The same; see window.h.
  void keep(void* window) { windows_.push_back(window); }
  void forget(void* data, void* window) { forgotten_.emplace_back(data, window); }
  void close_windows();  ///< all
  /// Without the mutex. Waits for the device, and closes the windows of what was forgotten.
  void free_forgotten();

 private:
  friend class Watchdog;
  const Device device_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  std::vector<void*> windows_;                      // that are open
  std::vector<std::pair<void*, void*>> forgotten_;  // memory, and its window
};

/// A call on a device.
class NcclWork final : public DeviceWork {
 public:
  NcclWork(Control& control, const Call& call, Device device);
  bool done() const override { return begun_ && end_.done(); }
  void wait() override;
  void synchronize() override;

  const Event& ready() const { return ready_; }  ///< when the tensors are there
  /// The call is done when the thread's current stream is.
  void end();

 private:
  friend class Watchdog;
  Control& control_;
  const Device device_;
  Event ready_, end_;
  std::atomic<bool> begun_{false};  // end_ was recorded
  Call call_;                       // keeps its tensors; those that are `awaited`, until wait()
  // For the watchdog, once it is on its way
  std::string what_;
  std::optional<uint64_t> ticket_;  // of the flight record, when it is to say how this ended
  Seconds timeout_{0};
  Activity activity_;
  Turns* turns_ = nullptr;
  int neighbour_ = -1;
  std::chrono::steady_clock::time_point started_, told_;  // told_: when the control plane heard last that it is late
};

/// One for a rank.
class Watchdog {
 public:
  explicit Watchdog(Job& job);
  ~Watchdog();
  static std::shared_ptr<Watchdog> of(Job& job);

  /// This rank works on the device.
  void use(Device device);
  void add(const std::shared_ptr<Communicator>& comm);
  /// Makes calls on communicators, and returns when NCCL has put all on their streams. Throws DistError.
  void run(const std::vector<Communicator*>& comms, Seconds timeout, const std::string& what,
           const std::function<void()>& calls);
  /// Returns when the communicator is no longer busy with what it was told last.
  void settle(Communicator& comm, Seconds timeout, const std::string& what);
  /// Looks after a call from here on, of which all is on the stream that will be, or as much as there was before an
  /// error. what: its name in messages. neighbour: a rank of the world that it needs.
  void watch(const std::shared_ptr<NcclWork>& work, bool complete, const std::string& what, const Call& call,
             Turns& turns, int neighbour);
  /// Whether nothing of these turns is on its way.
  bool idle(const Turns& turns) const;
  /// Returns when that is so, and ends a communicator in order, or by force when that takes long.
  void close(const Turns& turns, const std::vector<std::shared_ptr<Communicator>>& comms);

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
  Works works_;  // in the order of their calls
  std::vector<std::shared_ptr<Communicator>> comms_;
  std::vector<Device> used_;
  std::shared_ptr<NcclWork> told_;  // the control plane knows that it is late
  bool stop_ = false;
  std::vector<Device> distrusted_;  // of the thread from here on
  std::optional<std::chrono::steady_clock::time_point> given_up_;
  std::thread thread_;  // last
};

}  // namespace lockstep::dist
