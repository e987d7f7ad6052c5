#pragma once
// One test body for all process groups: threads, shared memory, TCP, NCCL, and those of extensions.

#include "dist/process_group.h"

/// Properties of the group under test.
struct GroupBody {
  bool schedules = true;  ///< true: the group runs our schedules, so test every algorithm and count traffic to the byte
  /// The only other algorithm of a group without our schedules.
  lockstep::dist::Algorithm exact = lockstep::dist::Algorithm::automatic;
  lockstep::Device device = lockstep::default_device();
};

/// Throws std::runtime_error at the first failed check: ranks may be processes, whose failures doctest cannot count.
void check_group(lockstep::dist::ProcessGroup& group, const GroupBody& options = {});
