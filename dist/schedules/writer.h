#pragma once
// What algorithms write their transfers with, and the exchanges that several of them are made of.
#include <bit>
#include <numeric>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

/// Counts the steps; a step without transfers is none.
class StepWriter {
 public:
  explicit StepWriter(const Emit& emit) : emit_(emit) {}
  void copy(int from, int to, int32_t chunk) { move(Action::copy, from, {chunk, 0}, to, {chunk, 0}); }
  void reduce(int from, int to, int32_t chunk) { move(Action::reduce, from, {chunk, 0}, to, {chunk, 0}); }
  void scale(int rank, int32_t chunk) { move(Action::scale, rank, {chunk, 0}, rank, {chunk, 0}); }
  void move(Action action, int from, Place source, int to, Place target) {
    emit_({step_, from, to, source, target, action});
    used_ = true;
  }
  /// What follows comes after what was written so far.
  void next() {
    step_ += used_;
    used_ = false;
  }

 private:
  const Emit& emit_;
  int32_t step_ = 0;
  bool used_ = false;
};

/// Ranks that exchange something among themselves; chunks[i] are those that ranks[i] owns. Teams work side by side.
struct Team {
  std::vector<int> ranks;
  std::vector<std::vector<int32_t>> chunks = {};
  int size() const { return int(ranks.size()); }
};
using Teams = std::vector<Team>;

/// 0 .. n-1, from `first` on, around.
inline std::vector<int> all_ranks(int n, int first = 0) {
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ranks[size_t(i)] = (first + i) % n;
  return ranks;
}
/// All ranks; chunk i belongs to rank i.
inline Teams one_team(int n) {
  Teams teams(1);
  teams[0].ranks = all_ranks(n);
  for (int i = 0; i < n; ++i) teams[0].chunks.push_back({i});
  return teams;
}

// direct.cpp
/// Every owner gets the sum of its chunks over its team, in tree order over the team's list, in slot 0.
void sum_at_owners(StepWriter& w, const Teams& teams);
/// Every owner sends its chunks to the rest of its team, except to rank `skip`.
void share_from_owners(StepWriter& w, const Teams& teams, int skip = -1);

// tree.cpp: binomial trees over the teams' lists, ranks[0] at the top.
//
//   0 ◀── 1     up, three steps for 8: odd ones to their left neighbours, then 2 and 6, then 4; down is the way back.
//   0 ◀── 2 ◀── 3                      A rank at position p hands on the subtree [p, p + size).
//   0 ◀── 4 ◀── 5,  4 ◀── 6 ◀── 7
struct Edge {
  const Team& team;
  int child, parent;  ///< ranks
  int begin, end;     ///< positions of the subtree of the child
};
using EachEdge = std::function<void(const Edge&)>;
void up_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each);
void down_the_tree(StepWriter& w, const Teams& teams, const EachEdge& each);

}  // namespace lockstep::dist
