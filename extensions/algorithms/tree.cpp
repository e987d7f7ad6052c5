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
#include <span>

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

/// Moves the chunks of the child's subtree between the two ranks of an edge.
void move_subtree(StepWriter& w, const TreeEdge& e, int from, int to, const CollectiveRequest& request) {
  const bool full = request.collective != Collective::gather && request.collective != Collective::scatter;
  const auto place = [&](int rank, int32_t chunk) {
    return ChunkSlot{chunk, !full && rank != request.root && rank != chunk};
  };
  for (auto p = size_t(e.begin); p < size_t(e.end); ++p) {
    const bool has_list = !e.team.chunks.empty();
    for (const int32_t c : has_list ? std::span(e.team.chunks[p]) : std::span(&e.team.ranks[p], 1))
      w.move(TransferAction::copy, from, place(from, c), to, place(to, c));
  }
}

}  // namespace

void up_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each) {
  for (int level = 0; level < height(teams); ++level, w.next()) visit_level(teams, 1 << level, each);
}

void down_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each) {
  for (int level = height(teams) - 1; level >= 0; --level, w.next()) visit_level(teams, 1 << level, each);
}

void sum_up(StepWriter& w, const Teams& teams, int32_t chunks) {
  up_the_tree(w, teams, [&](const TreeEdge& e) {
    for (int32_t c = 0; c < chunks; ++c) w.reduce(e.child, e.parent, c);
  });
}

void copy_down(StepWriter& w, const Teams& teams, int32_t chunks) {
  down_the_tree(w, teams, [&](const TreeEdge& e) {
    for (int32_t c = 0; c < chunks; ++c) w.copy(e.parent, e.child, c);
  });
}

void gather_up(StepWriter& w, const Teams& teams, const CollectiveRequest& request) {
  up_the_tree(w, teams, [&](const TreeEdge& e) { move_subtree(w, e, e.child, e.parent, request); });
}

void scatter_down(StepWriter& w, const Teams& teams, const CollectiveRequest& request) {
  down_the_tree(w, teams, [&](const TreeEdge& e) { move_subtree(w, e, e.parent, e.child, request); });
}

static void by_tree(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks, root = request.root;
  const Teams teams{{all_ranks(n, root)}};
  const auto chunks = int32_t(chunk_count(request, true));
  StepWriter w(emit);
  const EachEdge copy_missing = [&](const TreeEdge& e) {  // the child already has its own subtree
    for (int p = 0; p < n; ++p)
      if (p < e.begin || p >= e.end) w.copy(e.parent, e.child, e.team.ranks[size_t(p)]);
  };
  const auto sum = [&] {
    sum_up(w, teams, chunks);
    for (int32_t c = 0; request.mean && c < chunks; ++c) w.scale(root, c);
    w.next();
  };
  switch (request.collective) {
    case Collective::all_reduce: sum(); return copy_down(w, teams, chunks);
    case Collective::reduce: return sum();
    case Collective::reduce_scatter: sum(); return scatter_down(w, teams, request);
    case Collective::broadcast: return copy_down(w, teams, chunks);
    case Collective::all_gather: gather_up(w, teams, request); return down_the_tree(w, teams, copy_missing);
    case Collective::gather: return gather_up(w, teams, request);
    case Collective::scatter: return scatter_down(w, teams, request);
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
