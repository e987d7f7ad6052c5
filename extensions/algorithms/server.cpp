// server: all data goes to one rank and back, as with a parameter server. A baseline for comparison.
//
//   4 ranks, all_reduce
//
//            rank 0 (server)          rank 1    rank 2    rank 3
//   step 0   0+1            ◀──────────
//   step 1   (0+1)+2        ◀────────────────────
//   step 2   ((0+1)+2)+3    ◀──────────────────────────────
//   step 3                  ──────────▶
//   step 4                  ────────────────────▶
//   step 5                  ──────────────────────────────▶
//
// Cost of all_reduce of S bytes: 2(n-1) messages of S bytes, all through the server: (n-1)·S in each direction at one
// rank, where the ring has 2(n-1)/n·S at each. The server adds in rank order. Li et al., Scaling distributed machine
// learning with the parameter server, 2014.
#include "dist/algorithm_rules.h"
#include "dist/schedules/writer.h"

namespace lockstep::dist {

static void by_server(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks, root = request.root;
  const auto chunks = int32_t(chunk_count(request, true));
  StepWriter w(emit);
  const auto sum = [&] {
    for (int rank = 0; rank < n; ++rank) {
      if (rank == root) continue;
      // To add in rank order, sum the terms of the ranks before the server in a scratch copy (slot 1) first.
      const bool before = rank < root && root > 1;
      for (int32_t c = 0; c < chunks; ++c)
        w.move(before && rank == 0 ? TransferAction::copy : TransferAction::reduce, rank, {c, 0}, root, {c, before});
      w.next();
      if (!before || rank != root - 1) continue;
      for (int32_t c = 0; c < chunks; ++c) w.move(TransferAction::reduce, root, {c, 1}, root, {c, 0});
      w.next();
    }
    for (int32_t c = 0; request.mean && c < chunks; ++c) w.scale(root, c);
    w.next();
  };
  const auto each_other = [&](auto&& visit) {
    for (int rank = 0; rank < n; ++rank) {
      if (rank != root) visit(rank);
      w.next();
    }
  };
  const auto gather = [&] { each_other([&](int rank) { w.copy(rank, root, rank); }); };
  const auto scatter = [&] { each_other([&](int rank) { w.copy(root, rank, rank); }); };
  const auto all_back = [&](bool but_own) {
    each_other([&](int rank) {
      for (int32_t c = 0; c < chunks; ++c)
        if (!but_own || c != rank) w.copy(root, rank, c);
    });
  };
  switch (request.collective) {
    case Collective::all_reduce: sum(); return all_back(false);
    case Collective::reduce_scatter: sum(); return scatter();
    case Collective::reduce: return sum();
    case Collective::all_gather: gather(); return all_back(true);
    case Collective::broadcast: return all_back(false);
    case Collective::gather: return gather();
    case Collective::scatter: return scatter();
    case Collective::all_to_all:  // data for other ranks lies in scratch copies at the server
      each_other([&](int i) {
        for (int j = 0; j < n; ++j)
          if (j != i) w.move(TransferAction::copy, i, {i * n + j, 0}, root, {i * n + j, j != root});
      });
      each_other([&](int j) {
        for (int i = 0; i < n; ++i)
          if (i != j) w.move(TransferAction::copy, root, {i * n + j, i != root}, j, {i * n + j, 0});
      });
      return;
    default: return;
  }
}

std::vector<CollectiveAlgorithm> server_algorithm() {
  const AlgorithmRules rules{
      .visit = by_server,
      .has_one_chunk = [](Collective) { return true; },
      .adds_in_tree_order = [](const CollectiveRequest& r) { return r.ranks == 3; },
  };
  return {{"server", rules}};
}

}  // namespace lockstep::dist
