#pragma once
// Records the error that each rank of a job gets after a fault, and how soon.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <string>

#include "dist/process_group.h"
#include "tests/dist/job.h"
#include "tests/messages.h"

namespace testing {

/// Options for ranks that are threads if `transport` is "threads", else processes.
inline lockstep::dist::SpawnOptions over(const std::string& transport, double timeout = 600, double heartbeat = 5) {
  using Kind = lockstep::dist::SpawnOptions::Kind;
  return {.kind = transport == "threads" ? Kind::threads : Kind::processes,
          .transport = transport,
          .timeout = lockstep::dist::Seconds(timeout),
          .heartbeat = lockstep::dist::Seconds(heartbeat)};
}

/// Runs a job and keeps the error of each rank. Its notes lie in memory that processes share and that outlives them.
class ErrorReports {
 public:
  ErrorReports()
      : notes_(new (mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Notes) {}
  ~ErrorReports() { munmap(notes_, sizeof(Notes)); }
  ErrorReports(const ErrorReports&) = delete;

  /// Runs fn on n ranks, at most 3. Returns the error of spawn(); "(no error)" if there was none.
  std::string run(int n, const std::function<void(int rank)>& fn, const lockstep::dist::SpawnOptions& options) {
    new (notes_) Notes;
    const auto noted = [&](int rank) {
      Rank& note = notes_->rank[rank];
      note.pid = getpid();
      try {
        fn(rank);
      } catch (const std::exception& error) {
        note.at = now_seconds();
        std::strncpy(note.text, error.what(), sizeof note.text - 1);
        throw;
      }
    };
    return message([&] { lockstep::dist::spawn(n, noted, options); });
  }
  /// A rank calls this when the fault happens.
  void happens() const { notes_->fault = now_seconds(); }
  bool has_happened() const { return notes_->fault > 0; }
  /// The error of a rank; "" if it had none, or had no time to note it.
  std::string text(int rank) const { return notes_->rank[rank].text; }
  /// Seconds from the fault to the rank's error.
  double delay(int rank) const { return notes_->rank[rank].at - notes_->fault; }
  /// The process of a rank; 0 before it runs.
  pid_t pid(int rank) const { return notes_->rank[rank].pid; }

 private:
  struct Rank {
    char text[2048] = "";
    double at = 0;
    std::atomic<pid_t> pid{0};
  };
  struct Notes {
    Rank rank[3];
    std::atomic<double> fault{0};
  };
  Notes* const notes_;
};

}  // namespace testing
