#pragma once
// One test body for every kind of process group: threads, shared memory, TCP, MPI, NCCL.
#include <string>

#include "dist/process_group.h"

struct GroupBody {
  bool schedules = true;  ///< the group runs our schedules: every algorithm, and traffic counted to the byte
  lockstep::dist::Algorithm exact =
      lockstep::dist::Algorithm::automatic;  ///< without: the one other algorithm that it has
  lockstep::Device device = lockstep::default_device();
};

/// Throws std::runtime_error on the first thing that is wrong (ranks may be processes that no test framework counts).
void check_group(lockstep::dist::ProcessGroup& group, const GroupBody& options = {});
