// in_place: for ranks that can access each other's memory. The owner of a chunk adds that chunk of all ranks' tensors,
// two tensors at a time, in the order of summation_tree.h, and writes the sum into all tensors. No scratch copies.
//
//   4 ranks, all_reduce, chunk 0: rank 0 does all of this; the other ranks do the same with their chunks
//
//   step 0      rank 1's ──▶ + rank 0's       rank 3's ──▶ + rank 2's            (0+1)   (2+3)
//   step 1      rank 2's ──▶ + rank 0's                                          ((0+1)+(2+3))
//   step 2-4    rank 0's ──▶ rank 1's, 2's, 3's
//
// reduce_scatter must not change the other ranks' tensors, so it runs the schedule of `direct`. all_gather runs that
// schedule, too. If a schedule is run over a network, each arrow is a message.
//
// Cost of all_reduce of S bytes: log2(n) + n-1 steps, 2(n-1)/n·S bytes read and written by each rank.
#include <bit>

#include "dist/algorithm_rules.h"
#include "dist/schedules/writer.h"

namespace lockstep::dist {
namespace {

/// Each chunk is summed as a binary tree. Leaf p of the tree holds the term of rank `owner` xor p, and is empty if that
/// is n or more. Returns the rank of the first leaf that is not empty, of `width` leaves from `position` on, or -1.
int first_term(int owner, int position, int width, int n) {
  const auto is_empty = [&] { return ((owner ^ position) & ~(width - 1)) >= n; };
  if (is_empty()) return -1;
  while (width > 1) {
    width /= 2;
    if (is_empty()) position += width;
  }
  return owner ^ position;
}

void sum_where_terms_lie(StepWriter& w, int n) {
  for (int width = 1; width < n; width *= 2, w.next()) {
    for (int owner = 0; owner < n; ++owner) {
      for (int left = 0; left < int(std::bit_ceil(unsigned(n))); left += 2 * width) {
        const int to = first_term(owner, left, width, n), from = first_term(owner, left + width, width, n);
        if (to >= 0 && from >= 0) w.reduce(from, to, owner);
      }
    }
  }
}

}  // namespace

static void where_they_lie(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks;
  StepWriter w(emit);
  switch (request.collective) {
    case Collective::all_reduce:
      sum_where_terms_lie(w, n);
      for (int rank = 0; request.mean && rank < n; ++rank) w.scale(rank, rank);
      w.next();
      return share_from_owners(w, one_team(n));
    case Collective::broadcast:
      for (int s = 1; s < n; ++s, w.next()) w.copy(request.root, (request.root + s) % n, 0);
      return;
    default: return rules::direct.visit(request, emit);
  }
}

const AlgorithmRules rules::in_place{
    .visit = where_they_lie,
    .has =
        [](Collective c) {
          return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather ||
                 c == Collective::broadcast;
        },
    .adds_in_tree_order = [](const CollectiveRequest&) { return true; },
};

}  // namespace lockstep::dist
