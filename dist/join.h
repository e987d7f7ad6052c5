#pragma once
// Joining a job: connect to the store, authenticate each other with the token, send the rank's identity, wait until all
// ranks are there.
#include <string>

#include "dist/net.h"
#include "dist/rank_table.h"
#include "dist/wire.h"

namespace lockstep::dist {

/// A rank's connection to the store, in a job that has begun.
struct Seat {
  Fd fd;
  FrameReader in{body_limit};
  Seconds heartbeat{5};  ///< rank 0's setting, for all ranks
  std::string store;     ///< "rank 0 (pid 12 on host)", for messages
};

/// Connects to the store and joins the job. Connections that fail or break are retried until the deadline. With
/// `place.file`, address, port and token are read from that file into `place`, and read again on each attempt, since
/// the file may be left from an earlier run. Throws DistError: Fault::timeout at the deadline; at once Fault::refused
/// if the store rejects this rank (wrong token, for example), and Fault::protocol if what answers is no store.
Seat take_seat(Rendezvous& place, const Member& member, Clock::time_point deadline);

/// Rank 0 with file://: writes its address, port and token into the file, for the owner only. Replaces an older file.
void publish(const Rendezvous& place);
/// Removes the file if it still holds this job's token.
void unpublish(const Rendezvous& place) noexcept;

}  // namespace lockstep::dist
