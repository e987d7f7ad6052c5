#pragma once
// The thread that a process group owns: it runs the group's asynchronous collectives one by one, in order of the calls.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "dist/process_group.h"

namespace lockstep::dist {

/// A running call on a device. wait() and synchronize() throw when the job has failed.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  virtual bool done() const = 0;   ///< true once the device has finished the work
  virtual void wait() = 0;         ///< orders later work of the thread's current stream after this work
  virtual void synchronize() = 0;  ///< returns when the device has finished the work
};

/// The state that all Work handles of one call share.
struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  std::function<void()> finish;  // called by the first wait()
  std::shared_ptr<DeviceWork> device;
};

/// Sets `stop` for a thread that waits on `changed`, and joins the thread if it was started.
inline void end_thread(std::thread& thread, std::mutex& mutex, bool& stop, std::condition_variable& changed) {
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  changed.notify_all();
  if (thread.joinable()) thread.join();
}

/// Runs tasks in order on a thread of its own.
class Worker {
 public:
  Worker() = default;
  /// Runs all queued tasks, then ends the thread. Every task has a timeout, so this terminates.
  ~Worker();
  Worker(const Worker&) = delete;

  /// Queues a task. Starts the thread on first use.
  Work submit(std::function<void()> task);
  /// True if nothing is queued or running.
  bool idle() const;

 private:
  void loop();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void()>, std::shared_ptr<Work::State>>> queue_;
  bool running_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::dist
