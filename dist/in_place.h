#pragma once
// Collectives on tensors that lie in memory shared by all ranks of a host (shared_memory.h): nothing is copied from
// rank to rank, each rank reads and writes the others' tensors where they are. What is done is the schedule
// schedules/in_place.cpp: the same sums in the same order as `direct`.
//
//   all_reduce, 2 ranks           rank 0's tensor │ chunk 0 │ chunk 1 │        rank 0 sums chunk 0 of both tensors,
//                                 rank 1's tensor │ chunk 0 │ chunk 1 │        and writes it into both; rank 1 chunk 1
//
// Before and after, the executor has all ranks hear from each other: the headers say that the tensors are there, marks
// at the end that nobody needs them any more.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dist/reduce.h"
#include "dist/schedule.h"
#include "dist/shared_memory.h"

namespace lockstep::dist {

/// Whether a call by this algorithm may work on tensors where they lie, when they do in shared memory.
bool can_work_in_place(Collective collective, Algorithm algorithm);

/// What one rank does of the schedule `in_place`, in order: in an all_reduce all that is done with its chunk, whoever's
/// tensors that is in; else all that is put into its own memory. No rank waits for what another does.
struct Share {
  int64_t chunks = 1;
  std::vector<Transfer> transfers;
  int32_t slots = 0;  ///< scratch copies
};
Share share_in_place(const Request& request, int rank);

/// What the executor needs to know of such a call.
struct InPlace {
  Collective collective = Collective::all_reduce;
  DType dtype = f32;
  ReduceOp op = ReduceOp::sum;
  int rank = 0, ranks = 1, root = 0;
  const Share* share = nullptr;  ///< of this rank
  int64_t count = 0;             ///< elements of the whole
  std::byte* whole = nullptr;    ///< this rank's tensor of `count` elements
  std::byte* part = nullptr;     ///< reduce_scatter: where the result goes; holds this rank's own term
  Placement placement;           ///< of `whole`

  size_t bytes() const { return size_t(count * size_of(dtype)); }
  /// Whether that rank's tensor must be in shared memory.
  bool needs(int peer) const { return collective != Collective::broadcast || peer == root; }
};

struct Execution;
struct PeerLink;
struct Moved;
struct Program;
class Patience;

/// Hears from all ranks, and when every tensor that matters lies in shared memory, does this rank's share of the work
/// and waits until nobody needs its tensor any more. Else nothing, and all ranks come to the same answer; links are
/// open then.
std::optional<Moved> run_in_place(const Execution& call, const Program& program, std::vector<PeerLink>& links,
                                  Patience& patience);

}  // namespace lockstep::dist
