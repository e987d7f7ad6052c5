#pragma once
// Jobs for tests of the control plane. Ranks are threads of the test, or child processes that run a script and may be
// killed or stopped. A child is the test program started anew, so that it begins with a single thread.
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dist/control.h"

/// A job of `world` ranks on this machine, with the listener of rank 0's store. Times are in seconds.
struct TestJob {
  explicit TestJob(int world, double heartbeat = 1, double timeout = 20);
  ~TestJob();
  /// The rendezvous of a rank. Rank 0's owns the listener, so call it once per rank.
  lockstep::dist::Rendezvous place(int rank);
  /// Joins `ranks`, each on its own thread, and runs body there. Returns the error of each rank; "" if there was none.
  std::map<int, std::string> run(const std::vector<int>& ranks,
                                 const std::function<void(lockstep::dist::Control&)>& body);
  /// All ranks, 0 to world - 1.
  std::vector<int> all() const { return without(-1); }
  /// All ranks but one.
  std::vector<int> without(int rank) const;

  lockstep::dist::Rendezvous base;
  int listener = -1;
};

/// A process that runs `script`: see the test case "child of a test" in job.cpp. The destructor kills it if it still
/// runs.
class Child {
 public:
  Child(const std::string& script, const lockstep::dist::Rendezvous& place, int descriptors = 0);
  ~Child();
  Child(const Child&) = delete;
  /// Sends a signal to the process.
  void signal(int number) const;
  /// The exit code, or 128 + signal; -1 after 30 s.
  int wait();
  const std::string& output() const { return output_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
  bool reaped_ = false;
  std::string output_;
};

/// Checks that no rank failed: every text of TestJob::run() is "".
void check_calm(const std::map<int, std::string>& said);
/// Waits until the job has failed, for at most 20 s, and throws its failure.
void until_failed(lockstep::dist::Control& control);
/// The number of open descriptors of this process.
size_t open_files();
/// Seconds of a monotonic clock.
double now_seconds();
#ifdef __SANITIZE_THREAD__
/// True under ThreadSanitizer.
inline constexpr bool thread_sanitized = true;
#else
inline constexpr bool thread_sanitized = false;
#endif
// .ci/run defines the second one, as g++ has no such macro
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_UNDEFINED__)
/// True under any sanitizer.
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = thread_sanitized;
#endif
/// The longest time in seconds until a fault is reported: 3 on an idle machine, more under sanitizers and in proportion
/// to the machine's load.
double slack();
