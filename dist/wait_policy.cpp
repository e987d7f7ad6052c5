// Waiting in a collective. See wait_policy.h.
#include "dist/wait_policy.h"

#include <thread>

namespace lockstep::dist {

std::string what(const Execution& call) {
  return call.describe ? *call.describe : std::string(name_of(Collective(call.header.kind)));
}

void WaitPolicy::wait(int rounds) {
  if (e_.control && e_.control->failed()) e_.control->raise();
  if (e_.transport) e_.transport->idle(rounds);
  if (rounds % 8 != 0) return;  // reading the clock may take longer than the peer needs
  const auto now = Clock::now();
  if (rounds == 0) {
    if (started_ == Clock::time_point()) started_ = now;
    reported_ = now;
  }
  if (e_.control && now - reported_ >= e_.control->renewal()) {
    reported_ = now;
    tell();
  }
  if (now - started_ >= e_.timeout) {
    if (e_.control) tell();
    throw DistError(
        Fault::timeout, -1,
        str("[", what(e_), "] not done after ", e_.timeout.count(), " s; ", whom().text,
            e_.control ? "; " + e_.control->explain({e_.world_ranks.begin(), e_.world_ranks.end()}) : std::string(),
            "; see the output of the late ranks, or raise the timeout"));
  }
}

WaitPolicy::Whom WaitPolicy::whom() const {
  for (const bool silent : {true, false})
    for (const PeerLink& link : links_) {  // first the ranks that have sent nothing yet
      if (!link.in.finished && (!silent || link.in.header_done == 0))
        return {link.world_rank, false, str("this rank waits to hear from rank ", link.world_rank)};
    }
  for (const PeerLink& link : links_) {
    if (!link.out.finished)
      return {link.world_rank, true, str("this rank waits for rank ", link.world_rank, " to take what it sends")};
  }
  return {-1, false, "this rank waits for no other rank"};
}

void WaitPolicy::tell() const {
  const Whom w = whom();
  if (w.rank >= 0) e_.control->waits(w.rank, 0, w.is_send);
}

void await_cause(Control& control, int rank) {
  using Clock = std::chrono::steady_clock;
  const Seconds heartbeat = control.place().heartbeat;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(4 * heartbeat + Seconds(1));
  auto reported = Clock::time_point();
  while (!control.failed() && Clock::now() < until) {
    // Report that this rank waits for `rank`. If `rank` has left the job, the store then reports that as the failure.
    if (Clock::now() - reported >= Seconds(0.05)) {
      control.waits(rank, 0, false);
      reported = Clock::now();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace lockstep::dist
