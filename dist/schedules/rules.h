#pragma once
// The interface between an algorithm's file and the rest: its schedule, the collectives that it supports, and its
// textbook cost.
#include <bit>
#include <optional>

#include "dist/schedule.h"

namespace lockstep::dist {

/// Textbook cost for S bytes over links of latency α and bandwidth β: messages·α + volume·S/β.
struct AlphaBetaCost {
  double messages, volume;
  const char* text;
};

/// The description of one algorithm.
struct AlgorithmRules {
  void (*visit)(const CollectiveRequest& request, const Emit& emit);  ///< emits the schedule
  /// True for the collectives that the algorithm supports. Default: all up to all_to_all, so that a collective that is
  /// added to the enumeration later has no schedules yet.
  bool (*has)(Collective collective) = [](Collective c) { return c <= Collective::all_to_all; };
  /// True if an all_reduce, broadcast or reduce treats the data as one chunk. False: one chunk for each rank.
  bool (*has_one_chunk)(Collective collective) = [](Collective c) { return c != Collective::all_reduce; };
  /// True if the terms of three or more ranks are added in the order of summation_tree.h. (For two, all orders agree.)
  bool (*adds_in_tree_order)(const CollectiveRequest& request) = [](const CollectiveRequest&) { return false; };
  /// The textbook cost; nothing if there is no short formula.
  std::optional<AlphaBetaCost> (*costs)(const CollectiveRequest& request) = [](const CollectiveRequest&) {
    return std::optional<AlphaBetaCost>();
  };
};

/// Textbook cost of `times` * (n - 1) messages, one after another, each with 1/n of the data.
inline AlphaBetaCost shares(const CollectiveRequest& r, int times = 1) {
  const double n = r.ranks;
  return {times * (n - 1), times * (n - 1) / n, times == 1 ? "(n-1)·α + (n-1)/n·S/β" : "2(n-1)·α + 2(n-1)/n·S/β"};
}
/// Textbook cost of `times` * (n - 1) messages, one after another, each with all the data.
inline AlphaBetaCost full_messages(const CollectiveRequest& r, int times = 1) {
  const double n = r.ranks;
  return {times * (n - 1), times * (n - 1), times == 1 ? "(n-1)·α + (n-1)·S/β" : "2(n-1)·α + 2(n-1)·S/β"};
}
/// Base-2 logarithm of the number of ranks, rounded up.
inline double log2_of(int ranks) { return std::bit_width(unsigned(ranks - 1)); }
/// True for broadcast and reduce, whose root sends or receives all the data.
inline bool moves_all(Collective c) { return c == Collective::broadcast || c == Collective::reduce; }
/// True for 1, 2, 4, ...
inline bool is_power_of_two(int ranks) { return std::has_single_bit(unsigned(ranks)); }

#define ALGORITHM(x) extern const AlgorithmRules x;
namespace rules {
#include "dist/schedules/algorithms.def"
}
#undef ALGORITHM

/// The textbook cost of a schedule; nothing if there is no short formula.
std::optional<AlphaBetaCost> costs_of(Algorithm algorithm, const CollectiveRequest& request);

}  // namespace lockstep::dist
