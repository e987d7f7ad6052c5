#pragma once
// The group's own thread: asynchronous collectives run on it one after another, in the order of the calls.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "dist/process_group.h"

namespace lockstep::dist {

/// A call on a device.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  virtual bool done() const = 0;
  virtual void wait() = 0;         ///< what the thread's current stream is given from now on runs after it
  virtual void synchronize() = 0;  ///< returns when the device is done with it; both throw when the job has failed
};

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  std::function<void()> finish;  // for the first wait()
  std::shared_ptr<DeviceWork> device;
};

/// Sets `stop` for a thread that waits for `changed`, and waits for its end, where it was started.
inline void end_thread(std::thread& thread, std::mutex& mutex, bool& stop, std::condition_variable& changed) {
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  changed.notify_all();
  if (thread.joinable()) thread.join();
}

class Worker {
 public:
  Worker() = default;
  /// Runs what is queued, then ends the thread. Every task has a deadline of its own, so this ends too.
  ~Worker();
  Worker(const Worker&) = delete;

  /// Starts the thread on first use.
  Work submit(std::function<void()> task);
  /// Nothing is queued and nothing runs.
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
