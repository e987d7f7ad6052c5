#include "dist/schedule.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>

#include "tensor/check.h"
#include "tensor/suggest.h"

namespace lockstep::dist {
namespace {

constexpr std::string_view collectives[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all",
                                            "barrier", "send", "receive", "batch"};
constexpr std::string_view algorithms[] = {"automatic", "ring", "direct", "tree", "halving_doubling", "hierarchical", "server", "one_shot"};

template <class Name, size_t n>
Name parse(const char* what, const std::string_view (&names)[n], std::string_view name) {
  const auto found = std::find(names, names + n, name);
  if (found != names + n) return Name(found - names);
  std::string list;
  for (const std::string_view one : names) list += (list.empty() ? "" : ", ") + std::string(one);
  fail(str("[", what, "] expected one of ", list, ", got \"", name, "\"", suggestion(name, {names, names + n})));
}

void check(Algorithm algorithm, const Request& r) {
  LOCKSTEP_CHECK(r.ranks >= 1, "[schedule] expected 1 rank or more, got ", r.ranks);
  LOCKSTEP_CHECK(r.root >= 0 && r.root < r.ranks, "[schedule] expected a root from 0 to ", r.ranks - 1, ", got ", r.root);
  if (!has_schedule(algorithm, r.collective)) {
    std::string others;
    for (int a = 0; a <= int(last_algorithm); ++a) {
      if (has_schedule(Algorithm(a), r.collective)) others += (others.empty() ? "; expected one of " : ", ") + std::string(name_of(Algorithm(a)));
    }
    fail(str("[schedule] ", name_of(algorithm), " has no schedule for ", name_of(r.collective), others.empty() ? ": no algorithm has" : others));
  }
  LOCKSTEP_CHECK(!r.mean || is_reduction(r.collective), "[schedule] ", name_of(r.collective), " adds nothing, so there is no mean of it");
  LOCKSTEP_CHECK(r.hosts.empty() || r.hosts.size() == size_t(r.ranks), "[schedule] expected the host of each of ", r.ranks, " ranks, got ", r.hosts.size());
  const int64_t n = r.ranks, most = std::numeric_limits<int32_t>::max();
  LOCKSTEP_CHECK(r.collective != Collective::all_to_all || n * n <= most, "[schedule] all_to_all goes up to 46340 ranks, got ", n);
}

}  // namespace

// Headers of other ranks may hold any number.
std::string_view name_of(Collective collective) { return size_t(collective) < std::size(collectives) ? collectives[size_t(collective)] : "something unknown"; }
std::string_view name_of(Algorithm algorithm) { return size_t(algorithm) < std::size(algorithms) ? algorithms[size_t(algorithm)] : "an unknown algorithm"; }
Collective parse_collective(std::string_view name) { return parse<Collective>("collective", collectives, name); }
Algorithm parse_algorithm(std::string_view name) { return parse<Algorithm>("algorithm", algorithms, name); }

bool is_reduction(Collective c) { return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::reduce; }
bool has_root(Collective c) { return c == Collective::broadcast || c == Collective::reduce || c == Collective::gather || c == Collective::scatter; }

bool has_schedule(Algorithm algorithm, Collective collective) {
  if (int(collective) >= scheduled_collectives) return false;
  switch (algorithm) {
    case Algorithm::automatic: return false;
    case Algorithm::ring:
    case Algorithm::tree: return collective != Collective::all_to_all;  // would pass everything on many times
    case Algorithm::halving_doubling: return collective != Collective::gather && collective != Collective::scatter && collective != Collective::all_to_all;
    case Algorithm::one_shot: return collective == Collective::all_reduce;
    default: return true;
  }
}

int64_t chunk_count(Algorithm algorithm, const Request& request) {
  const int64_t n = request.ranks;
  switch (request.collective) {
    case Collective::all_to_all: return n * n;
    case Collective::all_reduce: return algorithm == Algorithm::tree || algorithm == Algorithm::server || algorithm == Algorithm::one_shot ? 1 : n;
    case Collective::broadcast:
    case Collective::reduce: return algorithm == Algorithm::direct || algorithm == Algorithm::halving_doubling ? n : 1;
    default: return n;
  }
}

bool adds_in_tree_order(Algorithm algorithm, const Request& r) {
  check(algorithm, r);
  if (!is_reduction(r.collective)) return false;
  if (r.ranks <= 2) return true;
  switch (algorithm) {
    case Algorithm::direct:
    case Algorithm::one_shot: return true;
    case Algorithm::tree: return r.root == 0;
    case Algorithm::halving_doubling: return std::has_single_bit(unsigned(r.ranks));
    case Algorithm::server: return r.ranks == 3;
    case Algorithm::hierarchical: {  // hosts of 2^i neighbours each, all alike
      if (r.collective == Collective::reduce && r.root != 0) return false;
      const auto size = r.hosts.empty() ? std::ptrdiff_t(r.ranks) : std::count(r.hosts.begin(), r.hosts.end(), r.hosts[0]);
      if (size == r.ranks) return true;
      if (r.ranks % size != 0 || !std::has_single_bit(unsigned(size))) return false;
      std::map<int, int> seen;
      for (int rank = 0; rank < r.ranks; ++rank) {
        const int host = int(seen.try_emplace(r.hosts[size_t(rank)], int(seen.size())).first->second);
        if (host != rank / size) return false;
      }
      return true;
    }
    default: return false;
  }
}

void visit_schedule(Algorithm algorithm, const Request& request, const Emit& emit) {
  check(algorithm, request);
  switch (algorithm) {
    case Algorithm::automatic: break;  // refused above
    case Algorithm::ring: return ring(request, emit);
    case Algorithm::direct: return direct(request, emit);
    case Algorithm::tree: return tree(request, emit);
    case Algorithm::halving_doubling: return halving_doubling(request, emit);
    case Algorithm::hierarchical: return hierarchical(request, emit);
    case Algorithm::server: return server(request, emit);
    case Algorithm::one_shot: return one_shot(request, emit);
  }
}

std::vector<Transfer> make_schedule(Algorithm algorithm, const Request& request) {
  std::vector<Transfer> list;
  visit_schedule(algorithm, request, [&](const Transfer& t) { list.push_back(t); });
  return list;
}

std::vector<Transfer> program_of(Algorithm algorithm, const Request& request, int rank) {
  LOCKSTEP_CHECK(rank >= 0 && rank < request.ranks, "[schedule] expected a rank from 0 to ", request.ranks - 1, ", got ", rank);
  std::vector<Transfer> list;
  visit_schedule(algorithm, request, [&](const Transfer& t) { if (t.from == rank || t.to == rank) list.push_back(t); });
  return list;
}

}  // namespace lockstep::dist
