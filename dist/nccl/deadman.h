#pragma once
// Ends the process when a step that must end does not: what hangs in a library cannot be ended otherwise. The process
// says which step, and where its thread hangs.
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

class Deadman {
 public:
  /// last_words: called before the end with what is printed too.
  explicit Deadman(std::function<void(const std::string&)> last_words);
  ~Deadman();
  Deadman(const Deadman&) = delete;

  static constexpr int exit_code = 70;  ///< of a process that it ends

 private:
  struct Armed {
    std::string what;
    pthread_t thread, waits;
    Seconds limit;
    std::chrono::steady_clock::time_point until;
  };

 public:
  /// Must end within the limit. waits: the thread that it is a step of.
  class Step {
   public:
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
