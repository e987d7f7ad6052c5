#pragma once
// The interface between an algorithm's file and the rest: its schedule, and the collectives that it supports.
#include <bit>
#include <string>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

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
  /// True if the schedule depends on CollectiveRequest::hosts.
  bool uses_hosts = false;
};

/// An algorithm and its name, as extensions add it: a function that returns a list of these stands in the list
/// `collective_algorithms` of the extension's meson.build.
struct CollectiveAlgorithm {
  std::string name;  ///< names it in options, and on other ranks, whose builds may have other algorithms
  AlgorithmRules rules;
};
/// The algorithms of all extensions of this build.
const std::vector<CollectiveAlgorithm>& algorithms_of_extensions();

/// chunk_count() of an algorithm, by what its has_one_chunk() says for the request's collective.
int64_t chunk_count(const CollectiveRequest& request, bool has_one_chunk);

/// True for 1, 2, 4, ...
inline bool is_power_of_two(int ranks) { return std::has_single_bit(unsigned(ranks)); }

#define ALGORITHM(x) extern const AlgorithmRules x;
namespace rules {
#include "dist/schedules/algorithms.def"
}
#undef ALGORITHM

}  // namespace lockstep::dist
