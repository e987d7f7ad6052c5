#pragma once
// Failures between ranks. All ranks of a job raise the same error: the first failure that any rank reported.
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"

namespace lockstep::dist {

/// A duration in seconds, of timeouts mostly.
using Seconds = std::chrono::duration<double>;

/// Kinds of failure between ranks.
enum class Fault {
  rank_failed,  ///< a rank died or threw: `rank` says which
  rank_silent,  ///< no heartbeat from `rank`: stopped, swapped out, or disconnected
  rank_left,    ///< `rank` left the job while others still wait for it
  store_lost,   ///< the process that hosts the store (rank 0) is gone
  mismatch,     ///< ranks disagree about a collective
  deadlock,     ///< ranks wait for each other in a cycle
  timeout,      ///< a call took longer than its timeout; no other failure is known
  protocol,     ///< malformed, damaged or truncated bytes
  refused,      ///< rendezvous rejected the rank: wrong token, job, world size or version, or a duplicate rank
};
/// The name of a kind of failure, for messages: "rank failed", "timeout" and so on.
std::string_view name_of(Fault fault);

/// A lost peer or connection, or disagreement between ranks. The group cannot be used any more.
class DistError : public Error {
 public:
  /// `message`: the text of what().
  DistError(Fault fault, int rank, const std::string& message) : Error(message), fault(fault), rank(rank) {}
  Fault fault;
  int rank;  ///< the rank at fault; -1 when there is no single one
};

/// Returns the new value of the store's counter `key`: its present value, given as the text `before`, plus `delta`.
/// DistError (refused), which blames `rank`, if `before` is no number or the sum does not fit into i64.
int64_t added(const std::string& key, const std::string& before, int64_t delta, int rank);

}  // namespace lockstep::dist
