#pragma once
// Verifies a schedule by running it on symbols instead of numbers: a place holds "chunk 2 of rank 0", or the sum of two
// earlier values. This proves a new schedule correct for a given number of ranks before any data moves.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

/// Result of a symbolic run. The schedule is right if `errors` is empty: then each rank ends with the result of the
/// collective, every term is added exactly once, and results that must be equal are the same sums in the same order.
struct CollectiveCheck {
  std::vector<std::string> errors;  ///< the first few errors; each names step, ranks and place
  int64_t steps = 0;
  int64_t rounds = 0;         ///< steps in which data moves between ranks
  int64_t transfers = 0;      ///< number of transfers between ranks
  int64_t joins = 0;          ///< transfers inside a rank: additions of partial sums, divisions of means
  int slots = 0;              ///< number of scratch copies (the highest slot)
  std::vector<int64_t> sent;  ///< chunks sent by each rank
  std::vector<int64_t> received;
  std::vector<bool> in_tree_order;  ///< reductions: true for a chunk that is added in the order of summation_tree.h

  bool right() const { return errors.empty(); }  ///< true if no errors were found
  bool all_in_tree_order() const;                ///< true for a reduction if `in_tree_order` is true for all chunks
  /// The order in which a chunk's terms are added: "((0+1)+(2+3))". Empty unless the collective is a reduction.
  std::string order(int64_t chunk) const;

  // Values are numbered. The term of a rank in a chunk has the number rank * chunks + chunk. The computed value
  // nodes[i] has the number computed_from + i.
  /// A computed value: the sum of the values `left` and `right` or, if `right` is -1, `left` / ranks.
  struct Node {
    int64_t left, right;
    int32_t lowest;  ///< the lowest rank among the terms
  };
  std::vector<Node> nodes;
  std::vector<int64_t> results;  ///< reductions: value of each chunk at the end
  int64_t chunks = 0, computed_from = 0;
};

/// Runs the schedule of an algorithm on symbols.
CollectiveCheck check_schedule(Algorithm algorithm, const CollectiveRequest& request);
/// Runs any list of transfers on symbols; the list may be wrong in any way.
CollectiveCheck check_transfers(std::span<const Transfer> transfers, const CollectiveRequest& request, int64_t chunks);

/// True if `rank` holds `chunk` in its own buffer (slot 0) when the collective starts.
bool starts_with(const CollectiveRequest& request, int rank, int64_t chunk);
/// True if `rank` must hold `chunk` in its own buffer (slot 0) at the end.
bool ends_with(const CollectiveRequest& request, int rank, int64_t chunk);

}  // namespace lockstep::dist
