// tree: a binomial tree, for small tensors: few steps, whole messages. Sums go up to the root, results come down.
//
//   4 ranks, all_reduce
//
//            rank 0         rank 1         rank 2         rank 3
//   step 0   (0+1)  ◀────── term 1         (2+3)  ◀────── term 3
//   step 1   ((0+1)+(2+3))  ◀───────────── (2+3)
//   step 2   sum    ─────────────────────▶ sum
//   step 3   sum    ──────▶ sum            sum    ──────▶ sum
//
// Cost of all_reduce of S bytes: 2·log2(n) steps of S bytes on the critical path; the root sends log2(n)·S. With root 0
// the order of addition is that of summation_tree.h for every n. Thakur, Rabenseifner and Gropp, Optimization of
// collective communication operations in MPICH, 2005.
#include <algorithm>

#include "dist/algorithm_rules.h"
#include "extensions/algorithms/algorithms.h"

namespace lockstep::dist {
namespace {

void visit_level(const Teams& teams, int mask, const EachEdge& each) {
  for (const RankSet& team : teams) {
    for (int p = mask; p < team.size(); p += 2 * mask) {
      each({team, team.ranks[size_t(p)], team.ranks[size_t(p - mask)], p, std::min(p + mask, team.size())});
    }
  }
}

int height(const Teams& teams) {
  int size = 1;
  for (const RankSet& team : teams) size = std::max(size, team.size());
  return std::bit_width(unsigned(size - 1));
}

}  // namespace

void up_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each) {
  for (int level = 0; level < height(teams); ++level, w.next()) visit_level(teams, 1 << level, each);
}

void down_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each) {
  for (int level = height(teams) - 1; level >= 0; --level, w.next()) visit_level(teams, 1 << level, each);
}

static void by_tree(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks, root = request.root;
  const Teams teams{{all_ranks(n, root)}};
  const auto chunks = int32_t(chunk_count(request, true));
  // In gather and scatter a rank has memory for its own part only; data that it forwards lies in scratch copies.
  const bool full = request.collective != Collective::gather && request.collective != Collective::scatter;
  const auto place = [&](int rank, int32_t chunk) { return ChunkSlot{chunk, !full && rank != root && rank != chunk}; };
  StepWriter w(emit);

  const EachEdge sum_all = [&](const TreeEdge& e) {
    for (int32_t c = 0; c < chunks; ++c) w.reduce(e.child, e.parent, c);
  };
  const EachEdge copy_all = [&](const TreeEdge& e) {
    for (int32_t c = 0; c < chunks; ++c) w.copy(e.parent, e.child, c);
  };
  const EachEdge copy_missing = [&](const TreeEdge& e) {  // the child already has its own subtree
    for (int p = 0; p < n; ++p)
      if (p < e.begin || p >= e.end) w.copy(e.parent, e.child, e.team.ranks[size_t(p)]);
  };
  const auto move = [&](int from, int to, int32_t c) {
    w.move(TransferAction::copy, from, place(from, c), to, place(to, c));
  };
  const EachEdge subtree_up = [&](const TreeEdge& e) {
    for (int p = e.begin; p < e.end; ++p) move(e.child, e.parent, e.team.ranks[size_t(p)]);
  };
  const EachEdge subtree_down = [&](const TreeEdge& e) {
    for (int p = e.begin; p < e.end; ++p) move(e.parent, e.child, e.team.ranks[size_t(p)]);
  };
  const auto sum = [&] {
    up_the_tree(w, teams, sum_all);
    for (int32_t c = 0; request.mean && c < chunks; ++c) w.scale(root, c);
    w.next();
  };
  switch (request.collective) {
    case Collective::all_reduce: sum(); return down_the_tree(w, teams, copy_all);
    case Collective::reduce: return sum();
    case Collective::reduce_scatter: sum(); return down_the_tree(w, teams, subtree_down);
    case Collective::broadcast: return down_the_tree(w, teams, copy_all);
    case Collective::all_gather: up_the_tree(w, teams, subtree_up); return down_the_tree(w, teams, copy_missing);
    case Collective::gather: return up_the_tree(w, teams, subtree_up);
    case Collective::scatter: return down_the_tree(w, teams, subtree_down);
    default: return;
  }
}

std::vector<CollectiveAlgorithm> tree_algorithm() {
  const AlgorithmRules rules{
      .visit = by_tree,
      .has = [](Collective c) { return c < Collective::all_to_all; },  // all_to_all would forward each chunk many times
      .has_one_chunk = [](Collective) { return true; },
      .adds_in_tree_order = [](const CollectiveRequest& r) { return r.root == 0; },
  };
  return {{"tree", rules}};
}

}  // namespace lockstep::dist
