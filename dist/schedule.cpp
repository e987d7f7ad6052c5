// schedule.cpp: names and properties of algorithms, and their schedules. See schedule.h.
#include "dist/schedule.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/suggest.h"
#include "dist/algorithm_rules.h"

namespace lockstep::dist {
namespace {

/// All algorithms in the order of their numbers: the enumerators of Algorithm, then those of extensions.
const std::vector<CollectiveAlgorithm>& table() {
  static const std::vector<CollectiveAlgorithm> all = [] {
    std::vector<CollectiveAlgorithm> rows{
        {"automatic", {}},
#define ALGORITHM(x) {#x, rules::x},
#include "dist/schedules/algorithms.def"
#undef ALGORITHM
    };
    rows.insert(rows.end(), algorithms_of_extensions().begin(), algorithms_of_extensions().end());
    return rows;
  }();
  return all;
}
/// The rules of an algorithm. Error for `automatic`.
const AlgorithmRules& rules_of(Algorithm algorithm) {
  LOCKSTEP_CHECK(
      algorithm != Algorithm::automatic,
      "[schedule] expected a specific algorithm such as ring, got automatic, which has no schedule of its own");
  return table()[size_t(algorithm)].rules;
}

/// The position of a name.
size_t parse(const char* what, const std::vector<std::string>& known, std::string_view name) {
  const auto found = std::find(known.begin(), known.end(), name);
  if (found != known.end()) return size_t(found - known.begin());
  fail(str("[", what, "] expected ", listed(known), ", got \"", name, "\"", suggestion(name, known)));
}

}  // namespace

// Headers from other ranks may contain any number, so a number that names no collective is not an error here.
std::string_view name_of(Collective collective) {
  return size_t(collective) < std::size(collective_names) ? collective_names[size_t(collective)] : "something unknown";
}
std::string describe_replay(int64_t collectives) {
  return str("replay of ", collectives, collectives == 1 ? " collective" : " collectives");
}
std::string_view name_of(Algorithm algorithm) {
  return size_t(algorithm) < table().size() ? std::string_view(table()[size_t(algorithm)].name)
                                            : "an unknown algorithm";
}
Collective parse_collective(std::string_view name) {
  return Collective(parse("collective", {std::begin(collective_names), std::end(collective_names)}, name));
}
Algorithm parse_algorithm(std::string_view name, const char* what) {
  std::vector<std::string> known = names_of_algorithms();
  known.insert(known.begin(), table()[0].name);
  return Algorithm(parse(what, known, name));
}

bool is_reduction(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::reduce;
}
bool has_root(Collective c) {
  return c == Collective::broadcast || c == Collective::reduce || c == Collective::gather || c == Collective::scatter;
}

std::vector<Algorithm> all_algorithms() {
  std::vector<Algorithm> all;
  for (size_t i = 1; i < table().size(); ++i) all.push_back(Algorithm(i));
  return all;
}

std::vector<std::string> names_of_algorithms() {
  std::vector<std::string> names;
  for (const Algorithm a : all_algorithms()) names.emplace_back(name_of(a));
  return names;
}

bool has_schedule(Algorithm algorithm, Collective collective) {
  return int(collective) < scheduled_collectives && algorithm != Algorithm::automatic &&
         rules_of(algorithm).has(collective);
}

void check_request(Algorithm algorithm, const CollectiveRequest& r) {
  LOCKSTEP_CHECK(r.ranks >= 1, "[schedule] expected 1 rank or more, got ", r.ranks);
  LOCKSTEP_CHECK(r.root >= 0 && r.root < r.ranks, "[schedule] expected a root from 0 to ", r.ranks - 1, ", got ",
                 r.root);
  if (!has_schedule(algorithm, r.collective)) {
    std::string others;
    for (const Algorithm a : all_algorithms()) {
      if (has_schedule(a, r.collective))
        others += (others.empty() ? "; expected one of " : ", ") + std::string(name_of(a));
    }
    fail(str("[schedule] ", name_of(algorithm), " has no schedule for ", name_of(r.collective),
             others.empty() ? ": no algorithm has; name another collective" : others));
  }
  LOCKSTEP_CHECK(!r.mean || is_reduction(r.collective), "[schedule] ", name_of(r.collective),
                 " does not reduce, so it has no mean; leave out mean");
  LOCKSTEP_CHECK(r.hosts.empty() || r.hosts.size() == size_t(r.ranks), "[schedule] expected the host of each of ",
                 r.ranks, " ranks, got ", r.hosts.size());
}

int64_t chunk_count(Algorithm algorithm, const CollectiveRequest& request) {
  return chunk_count(request, rules_of(algorithm).has_one_chunk(request.collective));
}

int64_t chunk_count(const CollectiveRequest& request, bool has_one_chunk) {
  const int64_t n = request.ranks;
  switch (request.collective) {
    case Collective::all_to_all: return n * n;
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce: return has_one_chunk ? 1 : n;
    default: return n;
  }
}

bool adds_in_tree_order(Algorithm algorithm, const CollectiveRequest& r) {
  check_request(algorithm, r);
  if (!is_reduction(r.collective)) return false;
  return r.ranks <= 2 || rules_of(algorithm).adds_in_tree_order(r);
}

bool uses_hosts(Algorithm algorithm) { return rules_of(algorithm).uses_hosts; }

void visit_schedule(Algorithm algorithm, const CollectiveRequest& request, const Emit& emit) {
  check_request(algorithm, request);
  const int64_t n = request.ranks, max_chunk = std::numeric_limits<int32_t>::max();  // highest number of a chunk
  LOCKSTEP_CHECK(request.collective != Collective::all_to_all || n * n <= max_chunk,
                 "[schedule] expected at most 46340 ranks for all_to_all, got ", n);
  rules_of(algorithm).visit(request, emit);
}

std::vector<Transfer> make_schedule(Algorithm algorithm, const CollectiveRequest& request) {
  std::vector<Transfer> list;
  visit_schedule(algorithm, request, [&](const Transfer& t) { list.push_back(t); });
  return list;
}

std::vector<Transfer> program_of(Algorithm algorithm, const CollectiveRequest& request, int rank) {
  LOCKSTEP_CHECK(rank >= 0 && rank < request.ranks, "[schedule] expected a rank from 0 to ", request.ranks - 1,
                 ", got ", rank);
  std::vector<Transfer> list;
  visit_schedule(algorithm, request, [&](const Transfer& t) {
    if (t.from == rank || t.to == rank) list.push_back(t);
  });
  return list;
}

}  // namespace lockstep::dist
