// halving_doubling: as few bytes as the ring, in log2(n) steps. Partners at distance 1, 2, 4, .. exchange halves of the
// data that they still have to sum (recursive halving), then return the sums in reverse order (recursive doubling).
//
//   4 ranks, all_reduce: chunks sent ──▶ receiving rank
//
//            rank 0        rank 1        rank 2        rank 3
//   step 0   1,3 ──▶ 1     0,2 ──▶ 0     1,3 ──▶ 3     0,2 ──▶ 2     partial sums (0+1) and (2+3) of two chunks each
//   step 1     2 ──▶ 2       3 ──▶ 3       0 ──▶ 0       1 ──▶ 1     ((0+1)+(2+3)): chunk i is complete at rank i
//   step 2     0 ──▶ 2       1 ──▶ 3       2 ──▶ 0       3 ──▶ 1
//   step 3   0,2 ──▶ 1     1,3 ──▶ 0     0,2 ──▶ 3     1,3 ──▶ 2
//
// Cost of all_reduce of S bytes: 2·log2(n) steps, 2(n-1)/n·S bytes sent by each rank. The nearest partner comes first,
// so if n is 2^i the order of addition is that of summation_tree.h. For other n, with p = 2^floor(log2 n), each
// rank r >= p hands its data to rank r - p first and gets its result last: two more steps, and up to 2·S more bytes.
// Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
#include "dist/algorithm_rules.h"
#include "extensions/algorithms/algorithms.h"

namespace lockstep::dist {

static void by_halves(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks, p = int(std::bit_floor(unsigned(n)));
  StepWriter w(emit);
  // At distance d, a rank sends its partner, rank xor d, the chunks c with c = partner (mod 2d), and keeps those with
  // c = rank (mod 2d). At the end, rank c mod p holds the sum of chunk c, where p is the largest power of two <= n.
  const auto halve = [&] {
    for (int extra = p; extra < n; ++extra)
      for (int32_t c = 0; c < n; ++c) w.reduce(extra, extra - p, c);
    w.next();
    for (int d = 1; d < p; d *= 2, w.next()) {
      for (int rank = 0; rank < p; ++rank) {
        for (int32_t c = (rank ^ d) % (2 * d); c < n; c += 2 * d) w.reduce(rank, rank ^ d, c);
      }
    }
    for (int32_t c = 0; request.mean && c < n; ++c) w.scale(c % p, c);
    w.next();
  };
  const auto double_up = [&] {
    for (int d = p / 2; d > 0; d /= 2, w.next()) {
      for (int rank = 0; rank < p; ++rank) {
        for (int32_t c = rank % (2 * d); c < n; c += 2 * d) w.copy(rank, rank ^ d, c);
      }
    }
  };
  const auto own_to_extras = [&] {
    for (int extra = p; extra < n; ++extra) w.copy(extra - p, extra, extra);
    w.next();
  };
  const auto own_from_extras = [&] {
    for (int extra = p; extra < n; ++extra) w.copy(extra, extra - p, extra);
    w.next();
  };
  const auto all_to_extras = [&](bool except_own) {
    for (int extra = p; extra < n; ++extra)
      for (int32_t c = 0; c < n; ++c)
        if (!except_own || c != extra) w.copy(extra - p, extra, c);
    w.next();
  };
  // A binomial tree scatters the chunks for broadcast, and gathers them for reduce.
  const Teams teams{{all_ranks(n, request.root)}};
  switch (request.collective) {
    case Collective::all_reduce:
      halve();
      double_up();
      return all_to_extras(false);
    case Collective::reduce_scatter: halve(); return own_to_extras();
    case Collective::all_gather:
      own_from_extras();
      double_up();
      return all_to_extras(true);
    case Collective::broadcast:
      scatter_down(w, teams, request);
      own_from_extras();
      double_up();
      return all_to_extras(true);
    case Collective::reduce:
      halve();
      own_to_extras();
      return gather_up(w, teams, request);
    default: return;
  }
}

std::vector<CollectiveAlgorithm> halving_doubling_algorithm() {
  const AlgorithmRules rules{
      .visit = by_halves,
      .has = [](Collective c) { return c < Collective::gather; },  // the collectives listed before gather
      .has_one_chunk = [](Collective) { return false; },
      .adds_in_tree_order = [](const CollectiveRequest& r) { return is_power_of_two(r.ranks); },
  };
  return {{"halving_doubling", rules}};
}

}  // namespace lockstep::dist
