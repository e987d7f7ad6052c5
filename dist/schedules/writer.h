#pragma once
// Helpers for writing schedules, and the exchanges that several algorithms are composed of.
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

/// Emits transfers and numbers the steps; a step without transfers is not counted.
class StepWriter {
 public:
  /// `emit` must outlive this object.
  explicit StepWriter(const Emit& emit) : emit_(emit) {}
  /// Copies a chunk from the buffer of rank `from` to the buffer of rank `to`.
  void copy(int from, int to, int32_t chunk) { move(TransferAction::copy, from, {chunk, 0}, to, {chunk, 0}); }
  /// Adds a chunk in the buffer of rank `from` to the same chunk in the buffer of rank `to`.
  void reduce(int from, int to, int32_t chunk) { move(TransferAction::reduce, from, {chunk, 0}, to, {chunk, 0}); }
  /// Divides a chunk in the buffer of `rank` by the number of ranks.
  void scale(int rank, int32_t chunk) { move(TransferAction::scale, rank, {chunk, 0}, rank, {chunk, 0}); }
  /// Emits any transfer, in the current step.
  void move(TransferAction action, int from, ChunkSlot source, int to, ChunkSlot target) {
    emit_({step_, from, to, source, target, action});
    used_ = true;
  }
  /// Starts a new step: its transfers run after those of all earlier steps.
  void next() {
    step_ += used_;
    used_ = false;
  }

 private:
  const Emit& emit_;
  int32_t step_ = 0;
  bool used_ = false;
};

/// Ranks that exchange data among themselves. ranks[i] owns the chunks whose numbers are in chunks[i].
struct RankSet {
  std::vector<int> ranks;
  std::vector<std::vector<int32_t>> chunks = {};
  int size() const { return int(ranks.size()); }  ///< number of ranks
};
/// Teams whose transfers run side by side, in the same steps.
using Teams = std::vector<RankSet>;

/// The ranks 0 .. n-1 in cyclic order from `first` on.
inline std::vector<int> all_ranks(int n, int first = 0) {
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ranks[size_t(i)] = (first + i) % n;
  return ranks;
}
/// One team of all ranks; chunk i belongs to rank i.
inline Teams one_team(int n) {
  Teams teams(1);
  teams[0].ranks = all_ranks(n);
  for (int i = 0; i < n; ++i) teams[0].chunks.push_back({i});
  return teams;
}

// Defined in direct.cpp
/// Sums each chunk over the ranks of the team that has it, into the buffer of the chunk's owner. Adds in the order of
/// summation_tree.h, by position in RankSet::ranks.
void sum_at_owners(StepWriter& w, const Teams& teams);
/// Every owner sends its chunks to the rest of its team, except to rank `skip`.
void share_from_owners(StepWriter& w, const Teams& teams, int skip = -1);

}  // namespace lockstep::dist
