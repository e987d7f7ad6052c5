#pragma once
// Runs one rank's part of a schedule over a transport, all peers at once, in blocks.
//
// Every transfer has a count of bytes done, and bytes are enough: a send may go as far as what earlier steps left in
// its source; a receive may go as far as earlier steps have done with its target (program.h). Chunks are cut into
// blocks, and the stream between two ranks is ordered by wave = block + step, so that a block goes through all its
// steps while it is in the cache, and no step waits for another as a whole. Both ranks know that order, so nobody waits
// in a circle.
//
//   wave 0   step 0 block 0
//   wave 1   step 0 block 1,  step 1 block 0
//   wave 2   step 0 block 2,  step 1 block 1,  step 2 block 0     ...
//
// A stream is a header (fingerprint.h), the payload, and with LOCKSTEP_COMM_CHECKSUM=1 a crc32c of the payload. When
// all headers say that the tensors lie in memory that the ranks share, a mark takes the place of the payload
// (in_place.h).
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

/// LOCKSTEP_COMM_CHECKSUM=1, as it was at the first call.
bool checksum_wanted();

struct Execution {
  const Program* program = nullptr;  ///< of program_of(...)
  Transport* transport = nullptr;    ///< may be null when ranks is 1
  DType dtype = f32;
  ReduceOp op = ReduceOp::sum;
  /// Memory of a place in slot 0. Places in other slots get theirs from the executor.
  std::function<std::span<std::byte>(int32_t chunk)> memory;
  /// Bytes of any chunk, also of those that have no memory here (gather through a tree).
  std::function<size_t(int32_t chunk)> chunk_bytes;
  const InPlace* in_place =
      nullptr;  ///< set when the call can be done on tensors in shared memory; same on all ranks but for the placement
  Header header;               ///< sent once to each peer that gets something, checked once from each
  Control* control = nullptr;  ///< failures of others end the wait; may be null in tests
  Seconds timeout{600};
  const std::string* describe = nullptr;  ///< of the call, for messages
  const std::string* group = nullptr;     ///< its name, for messages
  std::span<const int> world_ranks;       ///< of the group's ranks, for messages
  bool checksum = checksum_wanted();      ///< adds a crc32c to what this rank sends; receivers look at the header
};

struct Moved {
  int64_t sent = 0, received = 0, messages = 0, in_place = 0;
};  ///< bytes of payload; transfers sent; whether in place

/// Returns when this rank's part is done: its results are there and its memory may be reused. Throws DistError, which
/// it has reported to the other ranks.
Moved execute(const Execution& execution);

/// A channel that a peer closed is a consequence: gives the control plane time to say of what (the rank died, threw, or
/// left).
void await_cause(Control& control, int rank);

}  // namespace lockstep::dist
