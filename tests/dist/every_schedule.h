#pragma once
// All pairs of an algorithm and a collective, for tests.
#include <string>

#include "base/check.h"
#include "dist/schedule.h"

namespace lockstep::dist {

/// Calls visit(algorithm, collective) for each pair that has a schedule.
template <class Visit> void for_each_pair(const Visit& visit) {
  for (const Algorithm a : all_algorithms()) {
    for (int c = 0; c < scheduled_collectives; ++c)
      if (has_schedule(a, Collective(c))) visit(a, Collective(c));
  }
}

/// The algorithm and the request, for messages.
inline std::string describe(Algorithm a, const CollectiveRequest& r) {
  std::string hosts;
  for (const int host : r.hosts) hosts += str(" ", host);
  return str(name_of(a), " ", name_of(r.collective), ", ", r.ranks, " ranks, root ", r.root, r.mean ? ", mean" : "",
             hosts.empty() ? "" : ", hosts", hosts);
}

}  // namespace lockstep::dist
