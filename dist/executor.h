#pragma once
// Runs one rank's program (its part of a schedule) over a transport. Exchanges data with all peers at the same time.
//
// Each transfer has a counter of bytes done, and these counters are the only synchronization inside a rank: a send may
// proceed as far as earlier steps have written its source, a receive as far as earlier steps have finished with its
// target (program.h). Chunks are cut into blocks, and the stream between two ranks is ordered by wave = block + step,
// so that a block passes through all its steps while it is in the cache, and no step waits for another one to complete.
// Both ranks know this order, so no cycle of waits can arise.
//
//   wave 0   step 0 block 0
//   wave 1   step 0 block 1,  step 1 block 0
//   wave 2   step 0 block 2,  step 1 block 1,  step 2 block 0     ...
//
// A stream consists of a header (fingerprint.h), the payload and, with LOCKSTEP_COMM_CHECKSUM=1, a crc32c of the
// payload. If all headers say that the tensors lie in shared memory, a mark replaces the payload (in_place.h).
#include <functional>
#include <span>

#include "dist/control.h"
#include "dist/fingerprint.h"
#include "dist/in_place.h"
#include "dist/program.h"
#include "dist/reduce.h"
#include "dist/schedule.h"
#include "dist/transport.h"

namespace lockstep::dist {

/// True if LOCKSTEP_COMM_CHECKSUM=1 was set when checksum_wanted() was first called in this process.
bool checksum_wanted();

/// A collective call to execute: this rank's program and the memory, header and context that it runs with.
struct Execution {
  const Program* program = nullptr;  ///< made from the transfers of program_of()
  Transport* transport = nullptr;    ///< may be null if there is only one rank
  DType dtype = f32;
  ReduceOp op = ReduceOp::sum;
  /// Returns a chunk of the caller's tensor. The executor itself allocates the scratch copies of chunks.
  std::function<std::span<std::byte>(int32_t chunk)> memory;
  /// Returns the size of a chunk in bytes, even if the caller has no memory for it (as in a gather through a tree).
  std::function<size_t(int32_t chunk)> chunk_bytes;
  /// Not null if the call may read and write tensors in shared memory instead of sending them; all ranks must agree.
  const InPlace* in_place = nullptr;
  Header header;               ///< sent once to each peer that receives data; each sender's header must match it
  Control* control = nullptr;  ///< reports failures of other ranks, which end the wait; may be null in tests
  Seconds timeout{600};
  const std::string* describe = nullptr;  ///< description of the call, for messages
  const std::string* group = nullptr;     ///< name of the group, for messages
  std::span<const int> world_ranks;       ///< world ranks of the group's ranks, for messages
  /// True: append a crc32c to the data that this rank sends. Receivers learn from the header whether there is one.
  bool checksum = checksum_wanted();
};

/// Traffic of one call: payload bytes sent and received, transfers sent, and 1 in `in_place` if in shared memory.
struct CallTraffic {
  int64_t sent = 0, received = 0, messages = 0, in_place = 0;
};

/// Executes the call. Returns when this rank's part is done: its results are complete and its memory may be reused. On
/// failure, reports the failure to all ranks, and throws the one that was reported first in the job.
CallTraffic execute(const Execution& execution);

/// Call it after the peer `rank` has closed its channel. Waits until the control plane knows the cause (the peer died,
/// threw, or left), but for a few heartbeat intervals at most.
void await_cause(Control& control, int rank);

}  // namespace lockstep::dist
