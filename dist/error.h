#pragma once
// What goes wrong between ranks. Every rank of a job raises the same cause: that of the rank that failed first.
#include <string>
#include <string_view>

#include "tensor/check.h"

namespace lockstep::dist {

enum class Fault {
  rank_failed,  ///< a rank died, or threw: `rank` says which
  rank_silent,  ///< no heartbeat from `rank`: stopped, swapped out, or cut off
  rank_left,    ///< `rank` ended its part while others still wait for it
  store_lost,   ///< the process that hosts the store (rank 0) is gone
  mismatch,     ///< ranks disagree on a collective
  deadlock,     ///< ranks wait for each other in a circle
  timeout,      ///< nothing went wrong except that it takes too long
  protocol,     ///< bytes that are not ours, damaged or cut short
  refused,      ///< rendezvous says no: token, job, world size, rank taken, version
};
std::string_view name_of(Fault fault);

/// A peer or a link is lost, or ranks disagree. The group cannot be used any more.
class DistError : public Error {
 public:
  DistError(Fault fault, int rank, const std::string& message) : Error(message), fault(fault), rank(rank) {}
  Fault fault;
  int rank;  ///< the rank at fault, -1 when there is no single one
};

}  // namespace lockstep::dist
