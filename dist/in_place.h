#pragma once
// Collectives on tensors in memory shared by all ranks of a host (shared_memory.h): no tensor data is sent; each rank
// reads and writes the other ranks' tensors directly. The work follows the schedule of schedules/in_place.cpp: the same
// sums in the same order as `direct`.
//
//   all_reduce, 2 ranks     rank 0's tensor │ chunk 0 │ chunk 1 │   Rank 0 sums chunk 0 of both tensors and writes the
//                           rank 1's tensor │ chunk 0 │ chunk 1 │   sum into both; rank 1 does the same with chunk 1.
//
// The executor synchronizes all ranks before and after the work. Before it, headers say that the tensors are ready;
// after it, other messages (marks) say that the sender no longer needs the tensors of other ranks.
#include <cstdint>
#include <optional>
#include <vector>

#include "dist/reduce.h"
#include "dist/schedule.h"
#include "dist/shared_memory.h"

namespace lockstep::dist {

/// True if a call with this algorithm may work directly on tensors in shared memory.
bool can_work_in_place(Collective collective, Algorithm algorithm);

/// The part of the schedule `in_place` that one rank executes, in order. In an all_reduce, these are all
/// operations on the chunk that belongs to the rank, in the tensors of all ranks. In other collectives, they are all
/// operations that write into the rank's own memory. No rank waits for the work of another one.
struct Share {
  int64_t chunks = 1;
  std::vector<Transfer> transfers;
  int32_t slots = 0;  ///< scratch copies needed
};
/// Returns the part of the work that `rank` does in the schedule `in_place`.
Share share_in_place(const CollectiveRequest& request, int rank);

/// The parameters of a call that may run in place.
struct InPlace {
  Collective collective = Collective::all_reduce;
  DType dtype = f32;
  ReduceOp op = ReduceOp::sum;
  int rank = 0, ranks = 1, root = 0;
  const Share* share = nullptr;  ///< this rank's share of the work
  int64_t count = 0;             ///< elements of the whole tensor
  std::byte* full = nullptr;     ///< this rank's tensor of `count` elements
  std::byte* part = nullptr;     ///< reduce_scatter: memory of the result; holds this rank's own term at the start
  SegmentRange placement;        ///< where `full` lies in shared memory

  size_t bytes() const { return size_t(count * size_of(dtype)); }  ///< bytes of the whole tensor
  /// True if the tensor of rank `peer` must be in shared memory.
  bool needs(int peer) const { return collective != Collective::broadcast || peer == root; }
};

struct Execution;
struct PeerLink;
struct CallTraffic;
struct Program;
class WaitPolicy;

/// Exchanges headers with all ranks. If every tensor that the call needs lies in shared memory, does this rank's part
/// of the work, and waits until no rank needs its tensor any more. Otherwise returns nothing, on all ranks alike. The
/// caller then sends the data as usual, without a second exchange of headers.
std::optional<CallTraffic> run_in_place(const Execution& call, const Program& program, std::vector<PeerLink>& links,
                                        WaitPolicy& wait_policy);

}  // namespace lockstep::dist
