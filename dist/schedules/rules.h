#pragma once
// What the file of an algorithm says: its schedule, for which collectives it has one, and what the textbook says of it.
#include <bit>
#include <optional>

#include "dist/schedule.h"

namespace lockstep::dist {

/// Time of the textbook for S bytes over links of latency α and bandwidth β: messages·α + volume·S/β.
struct Costs {
  double messages, volume;
  const char* text;
};

struct Rules {
  void (*visit)(const Request& request, const Emit& emit);
  bool (*has)(Collective collective) = [](Collective) { return true; };
  /// Whether an all_reduce, broadcast or reduce moves the data as a whole, not in a chunk for each rank.
  bool (*is_whole)(Collective collective) = [](Collective c) { return c != Collective::all_reduce; };
  /// Whether terms of more than two ranks are added in the order of summation_tree.h.
  bool (*adds_in_tree_order)(const Request& request) = [](const Request&) { return false; };
  /// Nothing where there is no short one.
  std::optional<Costs> (*costs)(const Request& request) = [](const Request&) { return std::optional<Costs>(); };
};

// n - 1 messages one after another, `times` over: each with a rank's share of the data, or with all of it.
inline Costs shares(const Request& r, int times = 1) {
  const double n = r.ranks;
  return {times * (n - 1), times * (n - 1) / n, times == 1 ? "(n-1)·α + (n-1)/n·S/β" : "2(n-1)·α + 2(n-1)/n·S/β"};
}
inline Costs wholes(const Request& r, int times = 1) {
  const double n = r.ranks;
  return {times * (n - 1), times * (n - 1), times == 1 ? "(n-1)·α + (n-1)·S/β" : "2(n-1)·α + 2(n-1)·S/β"};
}
inline double log2_of(int ranks) { return std::bit_width(unsigned(ranks - 1)); }  ///< rounded up
inline bool moves_all(Collective c) { return c == Collective::broadcast || c == Collective::reduce; }
inline bool is_power_of_two(int ranks) { return std::has_single_bit(unsigned(ranks)); }

#define ALGORITHM(x) extern const Rules x;
namespace rules {
#include "dist/schedules/algorithms.def"
}
#undef ALGORITHM

std::optional<Costs> costs_of(Algorithm algorithm, const Request& request);

}  // namespace lockstep::dist
