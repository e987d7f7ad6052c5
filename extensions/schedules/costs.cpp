// costs.cpp: the textbook costs by algorithm. See costs.h.
#include "extensions/schedules/costs.h"

#include <bit>
#include <map>
#include <string_view>

namespace lockstep::dist {

std::optional<AlphaBetaCost> costs_of(Algorithm algorithm, const CollectiveRequest& r) {
  const Collective c = r.collective;
  const double n = r.ranks, log = std::bit_width(unsigned(r.ranks - 1));  // log: rounded up
  const auto is_power_of_two = [](int ranks) { return std::has_single_bit(unsigned(ranks)); };
  const bool power = is_power_of_two(r.ranks), all_reduce = c == Collective::all_reduce;
  const bool rooted = c == Collective::broadcast || c == Collective::reduce;  // the root sends or receives all the data
  const bool each_own = c == Collective::gather || c == Collective::scatter;
  const bool half = c == Collective::all_gather || c == Collective::reduce_scatter;
  // n - 1 messages, one after another, each with 1/n of the data (shares) or with all of it (full); or twice as many.
  const AlphaBetaCost shares{n - 1, (n - 1) / n, "(n-1)·α + (n-1)/n·S/β"},
      shares_twice{2 * (n - 1), 2 * (n - 1) / n, "2(n-1)·α + 2(n-1)/n·S/β"}, full{n - 1, n - 1, "(n-1)·α + (n-1)·S/β"},
      full_twice{2 * (n - 1), 2 * (n - 1), "2(n-1)·α + 2(n-1)·S/β"}, halving{log, (n - 1) / n, "log₂n·α + (n-1)/n·S/β"};
  const std::string_view name = name_of(algorithm);
  if (name == "ring") return rooted ? full : all_reduce ? shares_twice : shares;
  if (name == "direct" && (power || !is_reduction(c))) return rooted || all_reduce ? shares_twice : shares;
  if (name == "tree") {
    if (all_reduce) return AlphaBetaCost{2 * log, 2 * log, "2·log₂n·α + 2·log₂n·S/β"};
    if (rooted) return AlphaBetaCost{log, log, "log₂n·α + log₂n·S/β"};
    if (each_own && power) return halving;
  }
  if (name == "halving_doubling" && power)
    return half ? halving : AlphaBetaCost{2 * log, 2 * (n - 1) / n, "2·log₂n·α + 2(n-1)/n·S/β"};
  if (name == "hierarchical" && (power || c == Collective::all_gather)) {
    std::map<int, int> sizes;  // number of ranks of each host
    for (const int host : r.hosts) ++sizes[host];
    for (const auto& [host, size] : sizes)
      if (size != sizes.begin()->second || !is_power_of_two(size)) return std::nullopt;
    const double m = r.hosts.empty() ? 1 : double(sizes.size()), steps = n / m - 1 + m - 1;
    if (all_reduce) return AlphaBetaCost{2 * steps, 2 * (n - 1) / n, "2(k+m-2)·α + 2(n-1)/n·S/β, m hosts of k"};
    if (half) return AlphaBetaCost{steps, (n - 1) / n, "(k+m-2)·α + (n-1)/n·S/β, m hosts of k"};
  }
  if (name == "one_shot" || (name == "server" && rooted)) return full;
  if (name == "server" && all_reduce) return full_twice;
  if (name == "server" && each_own) return shares;
  return std::nullopt;
}

}  // namespace lockstep::dist
