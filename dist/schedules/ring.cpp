// ring: every rank sends to its right neighbour only. n - 1 steps sum the chunks (reduce_scatter), and n - 1 more
// distribute the sums (all_gather). Every link is busy in every step, and no rank sends more than necessary.
//
//   4 ranks, reduce_scatter: each rank sends the chunk that it has just added to, and the next rank adds its own term
//
//            rank 0        rank 1        rank 2        rank 3
//   step 0   ──chunk 3──▶  ──chunk 0──▶  ──chunk 1──▶  ──chunk 2──▶ (rank 0)
//   step 1   ──chunk 2──▶  ──chunk 3──▶  ──chunk 0──▶  ──chunk 1──▶
//   step 2   ──chunk 1──▶  ──chunk 2──▶  ──chunk 3──▶  ──chunk 0──▶
//   result   sum of 0      sum of 1      sum of 2      sum of 3
//
// Cost of all_reduce of S bytes: 2(n-1) steps, 2(n-1)/n·S bytes sent by each rank: the minimum, without a bottleneck.
// Chunk i is added in the order i+1, i+2, .., i, which depends on n. Patarasuk and Yuan, Bandwidth optimal all-reduce
// algorithms for clusters of workstations, 2009. This file lists the steps; dist/executor.cpp moves the bytes.
#include "dist/algorithm_rules.h"
#include "dist/schedules/writer.h"

namespace lockstep::dist {

static void by_ring(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks, root = request.root;
  const auto at = [n](int64_t position) { return int((position % n + n) % n); };  // wraps around the ring
  StepWriter w(emit);
  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      for (int s = 0; s < n - 1; ++s, w.next()) {
        for (int rank = 0; rank < n; ++rank) w.reduce(rank, at(rank + 1), at(rank - s - 1));
      }
      for (int rank = 0; request.mean && rank < n; ++rank) w.scale(rank, rank);
      w.next();
      if (request.collective == Collective::reduce_scatter) break;
      [[fallthrough]];
    case Collective::all_gather:
      for (int s = 0; s < n - 1; ++s, w.next()) {
        for (int rank = 0; rank < n; ++rank) w.copy(rank, at(rank + 1), at(rank - s));
      }
      break;
    case Collective::broadcast:  // a chain; the executor pipelines it in blocks, so all links are soon busy
      for (int s = 0; s < n - 1; ++s, w.next()) w.copy(at(root + s), at(root + s + 1), 0);
      break;
    case Collective::reduce:
      for (int s = 1; s < n; ++s, w.next()) w.reduce(at(root + s), at(root + s + 1), 0);
      if (request.mean) w.scale(root, 0);
      break;
    case Collective::gather:   // chunks move right until they reach the root, in scratch copies on the way
    case Collective::scatter:  // the chunk with the longest way leaves first
      for (int s = 0; s < n - 1; ++s, w.next()) {
        for (int distance = 1; distance < n; ++distance) {
          const bool gathers = request.collective == Collective::gather;
          const int hop = gathers ? s : s - (n - 1 - distance);  // steps that this chunk has taken so far
          if (hop < 0 || hop >= distance) continue;
          const int chunk = at(gathers ? root - distance : root + distance), from = at((gathers ? chunk : root) + hop);
          w.move(TransferAction::copy, from, {chunk, hop > 0}, at(from + 1), {chunk, hop + 1 < distance});
        }
      }
      break;
    default: break;
  }
}

const AlgorithmRules rules::ring{
    .visit = by_ring,
    .has = [](Collective c) { return c < Collective::all_to_all; },  // all_to_all would forward each chunk many times
};

}  // namespace lockstep::dist
