#pragma once
// Ends the process when a step exceeds its time limit: a call that hangs inside a library cannot be ended in any other
// way. Prints the step and the stack of its thread first.
//
//   const Deadman::Step step(deadman, Seconds(60), "ncclCommAbort of group world");
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "dist/control.h"

namespace lockstep::dist {

/// Watches steps with a time limit, on a thread of its own.
class Deadman {
 public:
  /// Starts the thread. `last_words`: called with the printed text before the process ends.
  explicit Deadman(std::function<void(const std::string&)> last_words);
  ~Deadman();
  Deadman(const Deadman&) = delete;

  static constexpr int exit_code = 70;  ///< exit code of a process that a Deadman ends

 private:
  struct Armed {
    std::string what;
    pthread_t thread, waits;
    Seconds limit;
    std::chrono::steady_clock::time_point until;
  };

 public:
  /// A step that must end within its time limit. The step begins with the construction of the object and ends with its
  /// destruction.
  class Step {
   public:
    /// Begins a step. `what`: its name, for the message. `waits`: the thread that is blocked until the step ends. If
    /// several steps block one thread, the message names the one begun last.
    Step(Deadman& deadman, Seconds limit, std::string what, pthread_t waits = pthread_self());
    ~Step();
    Step(const Step&) = delete;

   private:
    Deadman& deadman_;
    std::list<Armed>::iterator armed_;
  };

 private:
  void loop();
  [[noreturn]] void end_process(const Armed& armed);

  std::function<void(const std::string&)> last_words_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Armed> armed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::dist
