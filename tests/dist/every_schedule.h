#pragma once
// All pairs of an algorithm and a collective, and what a schedule moves, for tests.
#include <string>

#include "base/check.h"
#include "dist/schedule.h"
#include "dist/shard.h"

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

/// Describes what a rank sends and receives in a schedule for `count` elements of f32: "40 bytes sent, ...".
inline std::string traffic_text(int64_t sent, int64_t received, int64_t messages) {
  return str(sent, " bytes sent, ", received, " received, ", messages, " messages");
}
inline std::string expected_traffic(Algorithm a, const CollectiveRequest& r, int rank, int64_t count) {
  int64_t sent = 0, received = 0, messages = 0;
  for (const Transfer& t : program_of(a, r, rank)) {
    if (t.from == t.to) continue;
    (t.from == rank ? sent : received) += shard_range(count, chunk_count(a, r), t.source.chunk).size() * 4;
    messages += t.from == rank;
  }
  return traffic_text(sent, received, messages);
}

}  // namespace lockstep::dist
