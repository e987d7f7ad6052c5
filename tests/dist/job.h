#pragma once
// Jobs for tests of the control plane: ranks that are threads of the test, and ranks that are processes of their own
// (the test program started again, so that it has no threads yet) which do what a script says and may be killed or
// stopped.
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/control.h"

struct Job {
  explicit Job(int world, double heartbeat = 1, double timeout = 20);
  ~Job();
  lockstep::dist::Rendezvous place(int rank);  ///< rank 0's has the listener; ask once
  /// Joins `ranks`, each in its own thread, and runs body there; gives back what each threw ("" when nothing).
  std::map<int, std::string> run(const std::vector<int>& ranks,
                                 const std::function<void(lockstep::dist::Control&)>& body);
  std::vector<int> all() const;

  lockstep::dist::Rendezvous base;
  int listener = -1;
};

/// Another process that does `script`: see child_ranks in job.cpp. Killed when it is still there at the end.
class Child {
 public:
  Child(const std::string& script, const lockstep::dist::Rendezvous& place, int descriptors = 0);
  ~Child();
  Child(const Child&) = delete;
  void signal(int number) const;
  /// Waits until the process has written `word` to its standard output. False after 20 s.
  bool says(const std::string& word);
  /// Exit code, or 128 + signal; -1 after 30 s.
  int wait();
  const std::string& output() const { return output_; }
  pid_t pid() const { return pid_; }

 private:
  bool read_more(int milliseconds);
  pid_t pid_ = -1;
  int pipe_ = -1;
  bool reaped_ = false;
  std::string output_;
};

/// Waits until the job failed, and throws that failure; 20 s at most.
void until_failed(lockstep::dist::Control& control);
/// Seconds since some fixed moment.
double now_seconds();
#ifdef __SANITIZE_THREAD__
inline constexpr bool thread_sanitized = true;
#else
inline constexpr bool thread_sanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_UNDEFINED__)  // the second by .ci/run: g++ does not say it
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = thread_sanitized;
#endif
/// Seconds that a fault may take to be told: 3 on a free machine; more under sanitizers, and as much more as the
/// machine is loaded.
double slack();
