#pragma once
// How a rank waits for others in a collective: it looks for failures, tells the others whom it waits for, and gives up
// when the time is over.
#include <chrono>
#include <string>
#include <vector>

#include "dist/executor.h"
#include "dist/links.h"

namespace lockstep::dist {

/// What the call is, for messages.
std::string what(const Execution& call);

class Patience {
 public:
  /// Both must outlive it.
  Patience(const Execution& call, const std::vector<PeerLink>& links) : e_(call), links_(links) {}

  /// Calls visit(open), which gives back the bytes it moved, until it leaves `open` false. Throws DistError when
  /// another rank failed or the time is over.
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
  /// Nothing moved, `rounds` times in a row before this one.
  void wait(int rounds);
  /// The first rank that this one waits for.
  Whom whom() const;
  void tell() const;

  const Execution& e_;
  const std::vector<PeerLink>& links_;
  Clock::time_point started_{}, told_{};
};

}  // namespace lockstep::dist
