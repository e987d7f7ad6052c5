// direct: every rank talks to every other. Each rank owns a chunk, receives the n - 1 other terms of it directly, and
// adds them in the fixed binary tree of summation_tree.h (`exact` mode).
//
//   4 ranks, reduce_scatter, on rank 0. In round s = 1, 2, 3 rank r exchanges terms with rank r xor s, so every rank
//   receives from one rank at a time.
//
//            transfer                      chunk 0 (slot 0)     scratch copy (slot 1)
//   step 0   rank 1's term ──▶ + slot 0    0+1
//   step 1   rank 2's term ──▶ slot 1      0+1                  2
//   step 2   rank 3's term ──▶ + slot 1    0+1                  2+3
//   step 3   slot 1 ──▶ + slot 0           (0+1)+(2+3)
//
// Slot 1 collects the half of the sum that has no term of rank 0. For chunk 2, rank 2 computes 2+3 in slot 0 and 0+1 in
// slot 1, and then adds the two halves: the additions are those of (0+1)+(2+3), so the bits are the same.
//
// Cost of all_reduce of S bytes: 2(n-1) messages and 2(n-1)/n·S bytes sent by each rank, as in the ring, but chunks do
// not wait for one another; n(n-1)/2 links, log2(n) scratch copies of a chunk.
//
// The pairwise exchange is from Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
// MPICH, 2005; the order of addition is our own.
#include <algorithm>

#include "dist/algorithm_rules.h"
#include "dist/schedules/writer.h"

namespace lockstep::dist {
namespace {

/// Tells what a chunk's owner does with a term that arrives. It copies the term into slot `slot`, or adds it there
/// (`action`). Then, `joins` times, it adds the highest slot to the slot below. Position p of the owner's
/// summation tree holds the term of rank owner xor p, or nothing if there is no such rank. A subtree with a single term
/// needs no slot of its own.
struct Arrival {
  int slot = 0;
  TransferAction action = TransferAction::reduce;
  int joins = 0;
};

Arrival arrive(int owner, int s, int n) {
  const int peer = owner ^ s;
  const auto terms = [n](int position, int level) {
    return std::clamp(n - (position >> level << level), 0, 1 << level);
  };
  // At this level, subtrees have 2^level positions. Those of the peer and of the owner are two halves of a larger one.
  int level = std::bit_width(unsigned(s)) - 1;
  if (terms(peer, level) == 1) return {};
  Arrival a{1, TransferAction::copy, 1};
  while (terms(peer, level) > 1) {  // descend to the peer; the half closer to the owner arrives first
    --level;
    if (terms(peer ^ (1 << level), level) == 0) continue;  // the subtree has only this half
    if ((s >> level & 1) == 0) {
      a.joins = 0;  // this half arrives first: nothing to join yet
    } else if (terms(peer, level) == 1) {
      a.action = TransferAction::reduce;  // add the term to the other half, which has arrived
    } else {
      ++a.slot;
      ++a.joins;
    }
  }
  return a;
}

int largest(const Teams& teams) {
  int size = 0;
  for (const RankSet& team : teams) size = std::max(size, team.size());
  return size;
}

}  // namespace

void sum_at_owners(StepWriter& w, const Teams& teams) {
  const int rounds = int(std::bit_ceil(unsigned(largest(teams))));
  for (int s = 1; s < rounds; ++s) {
    int joins = 0;
    const auto each = [&](auto&& visit) {
      for (const RankSet& team : teams) {
        for (int owner = 0; owner < team.size(); ++owner) {
          if ((owner ^ s) < team.size()) visit(team, owner, arrive(owner, s, team.size()));
        }
      }
      w.next();
    };
    each([&](const RankSet& team, int owner, const Arrival& a) {
      const int from = team.ranks[size_t(owner ^ s)], to = team.ranks[size_t(owner)];
      for (const int32_t chunk : team.chunks[size_t(owner)]) w.move(a.action, from, {chunk, 0}, to, {chunk, a.slot});
      joins = std::max(joins, a.joins);
    });
    for (int j = 0; j < joins; ++j) {
      each([&](const RankSet& team, int owner, const Arrival& a) {
        if (j >= a.joins) return;
        const int rank = team.ranks[size_t(owner)];
        for (const int32_t chunk : team.chunks[size_t(owner)])
          w.move(TransferAction::reduce, rank, {chunk, a.slot - j}, rank, {chunk, a.slot - j - 1});
      });
    }
  }
}

void share_from_owners(StepWriter& w, const Teams& teams, int skip) {
  for (int s = 1; s < largest(teams); ++s, w.next()) {
    for (const RankSet& team : teams) {
      for (int owner = 0; owner < team.size() && s < team.size(); ++owner) {
        const int from = team.ranks[size_t(owner)], to = team.ranks[size_t((owner + s) % team.size())];
        for (const int32_t chunk : team.chunks[size_t(owner)])
          if (to != skip) w.copy(from, to, chunk);
      }
    }
  }
}

static void directly(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks, root = request.root;
  StepWriter w(emit);
  const auto scatter = [&] {
    for (int s = 1; s < n; ++s, w.next()) w.copy(root, (root + s) % n, (root + s) % n);
  };
  const auto gather = [&] {
    for (int s = 1; s < n; ++s, w.next()) w.copy((root + s) % n, root, (root + s) % n);
  };
  const auto sum = [&] {
    sum_at_owners(w, one_team(n));
    for (int rank = 0; request.mean && rank < n; ++rank) w.scale(rank, rank);
    w.next();
  };
  switch (request.collective) {
    case Collective::all_reduce: sum(); return share_from_owners(w, one_team(n));
    case Collective::reduce_scatter: return sum();
    case Collective::all_gather: return share_from_owners(w, one_team(n));
    case Collective::reduce: sum(); return gather();
    case Collective::broadcast: scatter(); return share_from_owners(w, one_team(n), root);
    case Collective::gather: return gather();
    case Collective::scatter: return scatter();
    case Collective::all_to_all:
      for (int s = 1; s < n; ++s, w.next()) {
        for (int i = 0; i < n; ++i) w.copy(i, (i + s) % n, i * n + (i + s) % n);
      }
      return;
    default: return;
  }
}

const AlgorithmRules rules::direct{
    .visit = directly,
    .has_one_chunk = [](Collective) { return false; },
    .adds_in_tree_order = [](const CollectiveRequest&) { return true; },
};

}  // namespace lockstep::dist
