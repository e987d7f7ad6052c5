#pragma once
// How a rank gets its seat: connect to the store, prove to each other that both know the token, say who one is, wait
// for all.
#include <string>

#include "dist/net.h"
#include "dist/roster.h"
#include "dist/wire.h"

namespace lockstep::dist {

/// A connection to the store in a job that has begun.
struct Seat {
  Fd fd;
  FrameReader in{body_limit};
  Seconds heartbeat{5};  ///< that of rank 0, for all
  std::string store;     ///< "rank 0 (pid 12 on host)"
};

/// Resets and refused connections are tried again until the deadline; what will not change is thrown at once. With
/// `place.file`, address, port and token are read from there (and read again: it may be of an earlier run); `place`
/// gets them.
Seat take_seat(Rendezvous& place, const Member& member, Clock::time_point deadline);

/// Rank 0 with file://: writes where it listens, and the token, for the owner's eyes only. Replaces an older file.
void publish(const Rendezvous& place);
/// Removes it again if it is still ours.
void unpublish(const Rendezvous& place) noexcept;

}  // namespace lockstep::dist
