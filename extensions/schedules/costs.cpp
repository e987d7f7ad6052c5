// costs.cpp: the textbook costs by algorithm. See costs.h.
#include "extensions/schedules/costs.h"

#include <bit>
#include <map>
#include <string_view>

namespace lockstep::dist {
namespace {

using Cost = std::optional<AlphaBetaCost>;

/// Textbook cost of `times` * (n - 1) messages, one after another, each with 1/n of the data.
AlphaBetaCost shares(const CollectiveRequest& r, int times = 1) {
  const double n = r.ranks;
  return {times * (n - 1), times * (n - 1) / n, times == 1 ? "(n-1)·α + (n-1)/n·S/β" : "2(n-1)·α + 2(n-1)/n·S/β"};
}
/// Textbook cost of `times` * (n - 1) messages, one after another, each with all the data.
AlphaBetaCost full_messages(const CollectiveRequest& r, int times = 1) {
  const double n = r.ranks;
  return {times * (n - 1), times * (n - 1), times == 1 ? "(n-1)·α + (n-1)·S/β" : "2(n-1)·α + 2(n-1)·S/β"};
}
/// Base-2 logarithm of the number of ranks, rounded up.
double log2_of(int ranks) { return std::bit_width(unsigned(ranks - 1)); }
/// True for 1, 2, 4, ...
bool is_power_of_two(int ranks) { return std::has_single_bit(unsigned(ranks)); }
/// True for broadcast and reduce, whose root sends or receives all the data.
bool moves_all(Collective c) { return c == Collective::broadcast || c == Collective::reduce; }

Cost of_ring(const CollectiveRequest& r) {
  return moves_all(r.collective) ? full_messages(r) : shares(r, r.collective == Collective::all_reduce ? 2 : 1);
}

Cost of_direct(const CollectiveRequest& r) {
  if (is_reduction(r.collective) && !is_power_of_two(r.ranks)) return std::nullopt;
  return shares(r, moves_all(r.collective) || r.collective == Collective::all_reduce ? 2 : 1);
}

Cost of_tree(const CollectiveRequest& r) {
  const double n = r.ranks, log = log2_of(r.ranks);
  switch (r.collective) {
    case Collective::all_reduce: return AlphaBetaCost{2 * log, 2 * log, "2·log₂n·α + 2·log₂n·S/β"};
    case Collective::broadcast:
    case Collective::reduce: return AlphaBetaCost{log, log, "log₂n·α + log₂n·S/β"};
    case Collective::gather:
    case Collective::scatter:
      if (is_power_of_two(r.ranks)) return AlphaBetaCost{log, (n - 1) / n, "log₂n·α + (n-1)/n·S/β"};
      return std::nullopt;
    default: return std::nullopt;
  }
}

Cost of_halving_doubling(const CollectiveRequest& r) {
  const double n = r.ranks, log = log2_of(r.ranks);
  if (!is_power_of_two(r.ranks)) return std::nullopt;
  if (r.collective == Collective::reduce_scatter || r.collective == Collective::all_gather)
    return AlphaBetaCost{log, (n - 1) / n, "log₂n·α + (n-1)/n·S/β"};
  return AlphaBetaCost{2 * log, 2 * (n - 1) / n, "2·log₂n·α + 2(n-1)/n·S/β"};
}

Cost of_hierarchical(const CollectiveRequest& r) {
  std::map<int, int> sizes;  // number of ranks of each host
  for (const int host : r.hosts) ++sizes[host];
  for (const auto& [host, size] : sizes)
    if (size != sizes.begin()->second || !is_power_of_two(size)) return std::nullopt;
  if (r.collective != Collective::all_gather && !is_power_of_two(r.ranks)) return std::nullopt;
  const double n = r.ranks, m = r.hosts.empty() ? 1 : double(sizes.size()), steps = n / m - 1 + m - 1;
  switch (r.collective) {
    case Collective::all_reduce:
      return AlphaBetaCost{2 * steps, 2 * (n - 1) / n, "2(k+m-2)·α + 2(n-1)/n·S/β, m hosts of k"};
    case Collective::all_gather:
    case Collective::reduce_scatter: return AlphaBetaCost{steps, (n - 1) / n, "(k+m-2)·α + (n-1)/n·S/β, m hosts of k"};
    default: return std::nullopt;
  }
}

Cost of_server(const CollectiveRequest& r) {
  if (moves_all(r.collective)) return full_messages(r);
  if (r.collective == Collective::all_reduce) return full_messages(r, 2);
  if (r.collective == Collective::gather || r.collective == Collective::scatter) return shares(r);
  return std::nullopt;
}

}  // namespace

std::optional<AlphaBetaCost> costs_of(Algorithm algorithm, const CollectiveRequest& request) {
  using CostOf = Cost (*)(const CollectiveRequest&);
  static const std::map<std::string_view, CostOf> costs = {
      {"ring", of_ring},
      {"direct", of_direct},
      {"tree", of_tree},
      {"halving_doubling", of_halving_doubling},
      {"hierarchical", of_hierarchical},
      {"server", of_server},
      {"one_shot", [](const CollectiveRequest& r) -> Cost { return full_messages(r); }},
  };
  const auto found = costs.find(name_of(algorithm));
  return found == costs.end() ? std::nullopt : found->second(request);
}

}  // namespace lockstep::dist
