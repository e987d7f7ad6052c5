// one_shot: every rank sends all its data to every other, and adds all terms by itself. This saves the second
// round of messages, which would distribute the sums. For tensors so small that only latency counts.
//
//   3 ranks, all_reduce       rank 0                      rank 1                        rank 2
//
//   step 0, 1    term 1 ──▶ slot 1             term 0 ──▶ slot 1              term 0 ──▶ slot 1
//                term 2 ──▶ slot 2             term 2 ──▶ slot 2              term 1 ──▶ slot 2
//   step 2       slot 0 += slot 1              slot 1 += slot 0               slot 1 += slot 2
//   step 3       slot 0 += slot 2              slot 1 += slot 2               slot 1 += slot 0
//   step 4                                     slot 1 ──▶ slot 0              slot 1 ──▶ slot 0
//
// Slot 0 is a rank's own tensor. Every addition has its operands in rank order, so all ranks compute the same bits,
// even for NaN. Cost of all_reduce of S bytes: n-1 messages and (n-1)·S bytes sent by each rank, n-1 scratch copies.
#include "dist/algorithm_rules.h"
#include "dist/schedules/writer.h"

namespace lockstep::dist {

static void at_once(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks;
  // The slot in which `rank` keeps the given term.
  const auto slot_of = [](int rank, int term) { return term == rank ? 0 : term < rank ? term + 1 : term; };

  StepWriter w(emit);
  for (int s = 1; s < n; ++s, w.next()) {
    for (int rank = 0; rank < n; ++rank) {
      const int to = (rank + s) % n;
      w.move(TransferAction::copy, rank, {0, 0}, to, {0, slot_of(to, rank)});
    }
  }
  for (int step = 1; step < n; step *= 2, w.next()) {
    for (int rank = 0; rank < n; ++rank) {
      for (int term = 0; term + step < n; term += 2 * step)
        w.move(TransferAction::reduce, rank, {0, slot_of(rank, term + step)}, rank, {0, slot_of(rank, term)});
    }
  }
  for (int rank = 1; rank < n; ++rank) w.move(TransferAction::copy, rank, {0, slot_of(rank, 0)}, rank, {0, 0});
  w.next();
  for (int rank = 0; request.mean && rank < n; ++rank) w.scale(rank, 0);
}

const AlgorithmRules rules::one_shot{
    .visit = at_once,
    .has = [](Collective c) { return c == Collective::all_reduce; },
    .has_one_chunk = [](Collective) { return true; },
    .adds_in_tree_order = [](const CollectiveRequest&) { return true; },
};

}  // namespace lockstep::dist
