#pragma once
// How a rank waits in a collective: it checks for failures, reports which rank it waits for, and stops at the timeout.
#include <chrono>
#include <string>
#include <vector>

#include "dist/executor.h"
#include "dist/links.h"

namespace lockstep::dist {

/// A short description of the call, for messages.
std::string what(const Execution& call);

/// The waiting loop of one call.
class WaitPolicy {
 public:
  /// `call` and `links` must outlive this object.
  WaitPolicy(const Execution& call, const std::vector<PeerLink>& links) : e_(call), links_(links) {}

  /// Calls visit(open) until it leaves `open` false: visit() must set `open` to true as long as something is left to
  /// do, and return the number of bytes that it moved. Throws DistError when another rank fails, or at the timeout.
  template <class Visit> void until_done(Visit&& visit) {
    for (int quiet = 0;;) {
      bool open = false;
      const size_t moved = visit(open);
      if (!open) return;
      if (moved > 0) quiet = 0;
      else wait(quiet++);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Whom {
    int rank = -1;
    bool is_send = false;
    std::string text;
  };
  /// Waits a little because no data moved. `rounds`: number of such waits since data last moved.
  void wait(int rounds);
  /// Returns a rank that this rank waits for, if possible one that has not sent anything yet.
  Whom whom() const;
  void tell() const;  ///< reports whom() to the control plane

  const Execution& e_;
  const std::vector<PeerLink>& links_;
  Clock::time_point started_{}, reported_{};
};

}  // namespace lockstep::dist
