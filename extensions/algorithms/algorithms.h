#pragma once
// Binomial trees, of which several algorithms are composed. The algorithms themselves are named by text:
// parse_algorithm("tree").
#include <functional>

#include "dist/schedules/writer.h"

namespace lockstep::dist {

// Binomial trees over the positions of a team's list, with ranks[0] as the root. For 8 ranks:
//
//   0 ◀─┬─ 1              Up, three steps: first 1, 3, 5, 7 send to the position on their left, then 2 and 6, then 4.
//       ├─ 2 ◀── 3        Down runs the same steps in reverse. A child at position p carries the data of its subtree,
//       └─ 4 ◀─┬─ 5       the positions [begin, end).
//              └─ 6 ◀── 7
/// A parent and child of a tree.
struct TreeEdge {
  const RankSet& team;
  int child, parent;  ///< ranks of the child and of the parent
  int begin, end;     ///< positions of the child's subtree
};
/// Emits the transfers of one edge.
using EachEdge = std::function<void(const TreeEdge&)>;
/// Visits all edges from the leaves to the root, one level per step.
void up_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each);
/// Visits all edges from the root to the leaves, one level per step.
void down_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each);

/// Adds the chunks 0 .. chunks - 1 of all ranks of a tree at its root.
void sum_up(StepWriter& w, const Teams& teams, int32_t chunks);
/// Copies the chunks 0 .. chunks - 1 from the root of a tree to all its ranks.
void copy_down(StepWriter& w, const Teams& teams, int32_t chunks);
/// Moves the chunks that ranks own to the root; in teams without `chunks`, a rank owns the chunk of its number. In
/// gather and scatter a rank has memory for its own chunk only, so those of other ranks lie in scratch copies.
void gather_up(StepWriter& w, const Teams& teams, const CollectiveRequest& request);
/// The opposite of gather_up(): moves chunks from the root to the ranks that own them.
void scatter_down(StepWriter& w, const Teams& teams, const CollectiveRequest& request);

}  // namespace lockstep::dist
