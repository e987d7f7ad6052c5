#pragma once
// Collectives on tensors that lie in memory shared by all ranks of a host (shared_memory.h): nothing is copied from rank to
// rank, each rank reads and writes the others' tensors where they are. The same sums in the same order as `direct`.
//
//   all_reduce, 2 ranks           rank 0's tensor │ chunk 0 │ chunk 1 │        rank 0 sums chunk 0 of both tensors,
//                                 rank 1's tensor │ chunk 0 │ chunk 1 │        and writes it into both; rank 1 chunk 1
//
// Before and after, the executor has all ranks hear from each other: the headers say that the tensors are there, marks at
// the end that nobody needs them any more.
#include <cstdint>
#include <functional>
#include <span>

#include "dist/reduce.h"
#include "dist/schedule.h"
#include "dist/shared_memory.h"

namespace lockstep::dist {

/// all_reduce, reduce_scatter, all_gather and broadcast, when done `direct`.
bool can_work_in_place(Collective collective, Algorithm algorithm);

/// What the executor needs to know of such a call.
struct InPlace {
  Collective collective = Collective::all_reduce;
  DType dtype = f32;
  ReduceOp op = ReduceOp::sum;
  int rank = 0, ranks = 1, root = 0;
  int64_t count = 0;           ///< elements of the whole
  std::byte* whole = nullptr;  ///< this rank's tensor of `count` elements
  std::byte* part = nullptr;   ///< reduce_scatter: where the result goes; holds this rank's own term
  Placement placement;         ///< of `whole`

  size_t bytes() const { return size_t(count * size_of(dtype)); }
  /// Whether that rank's tensor must be in shared memory.
  bool needs(int peer) const { return collective != Collective::broadcast || peer == root; }
};

/// This rank's share of the work. wholes: the tensors by rank, those that it needs.
void work_in_place(const InPlace& call, std::span<std::byte* const> wholes);

}  // namespace lockstep::dist
