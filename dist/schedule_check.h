#pragma once
// Proves a schedule right by running it on symbols instead of numbers: a place holds "chunk 2 of rank 0", or the sum of
// what two places held. Whoever adds a schedule finds out here, for any number of ranks, before a byte has moved.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

/// What a run on symbols found. Right when `errors` is empty: then each rank holds at the end what the collective
/// promises, every term exactly once, and equal results are the same sums in the same order.
struct Check {
  std::vector<std::string> errors;  ///< the first few, each naming step, ranks and place
  int64_t steps = 0;
  int64_t rounds = 0;         ///< steps in which something moves between ranks
  int64_t transfers = 0;      ///< between ranks
  int64_t joins = 0;          ///< inside a rank: partial sums joined, means divided
  int slots = 0;              ///< scratch copies in use (the highest slot)
  std::vector<int64_t> sent;  ///< by each rank, in chunks
  std::vector<int64_t> received;
  std::vector<bool> in_tree_order;  ///< by chunk, reductions: added in the order of summation_tree.h

  bool right() const { return errors.empty(); }
  bool all_in_tree_order() const;
  /// How the ranks' terms of a chunk are added: "((0+1)+(2+3))". Empty when the collective adds nothing.
  std::string order(int64_t chunk) const;

  // Values: a term is rank * chunks + chunk; what is computed counts from `computed_from`.
  struct Node {
    int64_t left, right;
    int32_t lowest;
  };  ///< right -1: left, divided; lowest: rank with the first term
  std::vector<Node> nodes;
  std::vector<int64_t> results;  ///< value of each chunk at the end, reductions
  int64_t chunks = 0, computed_from = 0;
};

Check check_schedule(Algorithm algorithm, const Request& request);
/// The same for any list of transfers, which may be wrong in any way.
Check check_transfers(std::span<const Transfer> transfers, const Request& request, int64_t chunks);

/// Which chunks a rank has when the collective starts, and which it must have at the end (in slot 0).
bool starts_with(const Request& request, int rank, int64_t chunk);
bool ends_with(const Request& request, int rank, int64_t chunk);

}  // namespace lockstep::dist
