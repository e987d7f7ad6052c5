// simulate.cpp: the two ways to simulate a schedule, transfer by transfer and by rounds. See simulate.h.
#include "extensions/forecast/simulate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "dist/shard.h"
#include "extensions/schedules/costs.h"
#include "extensions/schedules/place_map.h"

namespace lockstep::dist {
namespace {

void check_simulation(Algorithm algorithm, const CollectiveRequest& request, int64_t elements, int64_t element_size,
                      const Network& network) {
  const auto check = [](const NetworkLink& link, const char* which) {
    LOCKSTEP_CHECK(link.latency >= 0 && std::isfinite(link.latency), "[simulate] expected a latency ", which,
                   " of 0 s or more, got ", link.latency);
    LOCKSTEP_CHECK(link.bandwidth > 0 && std::isfinite(link.bandwidth), "[simulate] expected a bandwidth ", which,
                   " of more than 0 B/s, got ", link.bandwidth);
  };
  check(network.between, "between hosts");
  if (network.within) check(*network.within, "within a host");
  LOCKSTEP_CHECK(elements >= 0 && element_size > 0,
                 "[simulate] expected 0 elements or more, of 1 byte or more each, got ", elements, " of ",
                 element_size);
  check_request(algorithm, request);
}

/// The rounds of a schedule in which all ranks do the same: in each round, every rank sends a message and receives one
/// (if it has a partner). The first chunks are the largest (shard_range()), and the ranks that move them never wait for
/// others. So the time of the schedule is the sum of the times that these ranks need for the rounds.
struct Rounds {
  struct Alike {
    int64_t count;           // number of equal rounds
    int64_t chunks, stride;  // the rounds' largest message: `chunks` chunks 0, stride, 2·stride, ...
    NetworkLink link;
  };
  std::vector<Alike> list;
  int64_t messages = 0;
  bool exact = true;
};

/// Ranks per host if all hosts have the same number of consecutive ranks; else 0.
int64_t ranks_of_host(const CollectiveRequest& r) {
  if (r.hosts.empty()) return r.ranks;
  const auto& hosts = r.hosts;
  const int64_t k =
      std::find_if(hosts.begin(), hosts.end(), [&](int host) { return host != hosts[0]; }) - hosts.begin();
  std::set<int> visited;
  for (int64_t rank = 0; rank < r.ranks; ++rank) {
    if (rank % k == 0 ? !visited.insert(hosts[size_t(rank)]).second : hosts[size_t(rank)] != hosts[size_t(rank - 1)])
      return 0;
  }
  return r.ranks % k == 0 ? k : 0;
}

std::optional<Rounds> rounds_of(Algorithm algorithm, const CollectiveRequest& r, int64_t elements, int64_t element_size,
                                const Network& network) {
  const bool sums = r.collective == Collective::all_reduce || r.collective == Collective::reduce_scatter;
  const bool shares = r.collective == Collective::all_reduce || r.collective == Collective::all_gather;
  const bool all = algorithm == Algorithm::direct && r.collective == Collective::all_to_all;
  if (!sums && !shares && !all) return std::nullopt;
  const int64_t n = r.ranks, p = int64_t(std::bit_floor(unsigned(n))), k = ranks_of_host(r), both = sums + shares;
  // Number of rounds until every pair of ranks has exchanged. Some ranks idle unless `ranks` is a power of two.
  const auto in_pairs = [](int64_t ranks) { return int64_t(std::bit_ceil(unsigned(ranks))) - 1; };

  const NetworkLink near = network.within.value_or(network.between), far = k == n ? near : network.between;
  const bool mixed = network.within && k > 1 && k < n;
  if (network.within && k == 0) return std::nullopt;
  Rounds rounds;
  const std::string_view name = name_of(algorithm);
  if (name == "ring") {
    const double chunk = double((elements + n - 1) / n * element_size);
    const bool slow_near = mixed && near.latency + chunk / near.bandwidth > far.latency + chunk / far.bandwidth;
    rounds.list = {{both * (n - 1), 1, n, slow_near ? near : far}};  // all ranks wait for the slower links
    rounds.messages = both * (n - 1) * n;
    rounds.exact = !mixed || elements % n == 0;
    return rounds;
  }
  if (name == "direct") {
    if (mixed) return std::nullopt;
    if (sums) rounds.list.push_back({in_pairs(n), 1, n, far});
    if (shares || all) rounds.list.push_back({n - 1, 1, n, far});
    rounds.messages = int64_t(rounds.list.size()) * (n - 1) * n;
    rounds.exact = !sums || n == p || elements % n == 0;
    return rounds;
  }
  if (name == "halving_doubling") {
    if (n != p && (mixed || both < 2)) return std::nullopt;
    if (n != p) rounds.list.push_back({1, n, 1, far});
    for (int64_t d = 1; sums && d < p; d *= 2)
      rounds.list.push_back({1, (n - 1) / (2 * d) + 1, 2 * d, d < k ? near : far});
    for (int64_t d = p / 2; shares && d > 0; d /= 2)
      rounds.list.push_back({1, (n - 1) / (2 * d) + 1, 2 * d, d < k ? near : far});
    if (n != p) rounds.list.push_back({1, n, 1, far});
    rounds.messages = both * p * (std::bit_width(unsigned(p)) - 1) + 2 * (n - p);
    rounds.exact = n == p;
    return rounds;
  }
  if (name == "hierarchical") {
    if (k == 0) return std::nullopt;
    const int64_t m = n / k;
    if (sums) rounds.list.insert(rounds.list.end(), {{in_pairs(k), m, k, near}, {in_pairs(m), 1, n, far}});
    if (shares) rounds.list.insert(rounds.list.end(), {{m - 1, 1, n, far}, {k - 1, m, k, near}});
    rounds.messages = both * n * (k - 1 + m - 1);
    rounds.exact = !sums || n == p || elements % n == 0;
    return rounds;
  }
  if (name != "one_shot" || mixed) return std::nullopt;
  rounds.list = {{n - 1, 1, 1, far}};
  rounds.messages = (n - 1) * n;
  return rounds;
}

/// Stores the bytes that each rank sends and receives in `result`, for a schedule in which all ranks do the same.
void count_bytes(Algorithm algorithm, const CollectiveRequest& r, int64_t elements, int64_t element_size,
                 NetworkSimulation& result) {
  const int64_t n = r.ranks, all = elements * element_size, p = int64_t(std::bit_floor(unsigned(n))),
                k = std::max<int64_t>(ranks_of_host(r), 1);
  const std::string_view name = name_of(algorithm);
  const auto every = [&](int64_t first, int64_t stride) {  // chunks first, first + stride, ...
    const auto count = [&](int64_t end) { return first < end ? (end - first - 1) / stride + 1 : 0; };
    return (count(n) * (elements / n) + count(elements % n)) * element_size;
  };
  const auto size = [&](int64_t chunk) { return every(chunk % n, n); };
  for (int64_t rank = 0; rank < n; ++rank) {
    struct Bytes {
      int64_t sent = 0, received = 0;
    } sum, more;
    if (name == "ring") {
      sum = {all - size(rank), all - size(rank + n - 1)};
    } else if (name == "direct") {
      sum = {all - size(rank), (n - 1) * size(rank)};
    } else if (name == "halving_doubling") {
      if (rank >= p || rank + p < n) more = {all, all};
      if (rank < p) {
        sum.sent = all - every(rank, p);
        for (int64_t stride = 2; stride <= p; stride *= 2) sum.received += every(rank % stride, stride);
      }
    } else if (name == "hierarchical") {
      sum = {all - size(rank), (k - 1) * every(rank % k, k) + (n / k - 1) * size(rank)};
    } else {  // one_shot
      more = {(n - 1) * all, (n - 1) * all};
    }
    Bytes share = name == "ring" ? Bytes{all - size(rank + 1), all - size(rank)} : Bytes{sum.received, sum.sent};
    if (r.collective == Collective::all_gather) sum = {};
    if (r.collective != Collective::all_gather && r.collective != Collective::all_reduce) share = {};
    result.sent.push_back(sum.sent + share.sent + more.sent);
    result.received.push_back(sum.received + share.received + more.received);
  }
}

NetworkSimulation by_rounds(const Rounds& rounds, Algorithm algorithm, const CollectiveRequest& request,
                            int64_t elements, int64_t element_size) {
  const int64_t parts = algorithm == Algorithm::one_shot ? 1 : request.ranks;
  NetworkSimulation result;
  for (const auto& [count, chunks, stride, link] : rounds.list) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < chunks; ++c)
        result.seconds = result.seconds + (c == 0 ? link.latency : 0) +
                         double(shard_range(elements, parts, c * stride).size() * element_size) / link.bandwidth;
    result.steps += count;
  }
  result.messages = rounds.messages;
  count_bytes(algorithm, request, elements, element_size, result);
  return result;
}

constexpr int64_t max_memory = 1'000'000'000;  // keeps the whole process below 1 GiB

/// True if few of the n·n pairs (rank, chunk) occur: most ranks never hold most chunks. This holds for gather and
/// scatter, except with `ring`, which forwards every chunk through other ranks.
bool touches_few_places(Algorithm algorithm, const CollectiveRequest& r) {
  return algorithm != Algorithm::ring && (r.collective == Collective::gather || r.collective == Collective::scatter);
}

/// Estimates the bytes that simulate_transfers() needs: 8 for each pair (rank, chunk) in the array of a PlaceMap, or 64
/// in its hash table.
int64_t memory_of_transfers(Algorithm algorithm, const CollectiveRequest& r) {
  const int64_t n = r.ranks, chunks = chunk_count(algorithm, r);
  if (algorithm == Algorithm::one_shot) return 64 * n * n;
  if (r.collective == Collective::all_to_all) return 64 * 3 * n * n;
  if (touches_few_places(algorithm, r)) return 64 * n * (std::bit_width(unsigned(n)) / 2 + 1);
  int64_t scratch = 0;
  if (name_of(algorithm) == "hierarchical" && chunks > 1) {  // partial sums of a rank's own chunks within its host
    std::map<int, int> sizes;
    for (const int host : r.hosts) ++sizes[host];
    for (const auto& [host, size] : sizes) scratch = std::max<int64_t>(scratch, std::bit_width(unsigned(size - 1)));
    scratch *= n * int64_t(sizes.size());
  } else if (r.collective == Collective::gather || r.collective == Collective::scatter) {
    scratch = n * n / 2;
  }
  return 8 * n * chunks + 64 * scratch;
}

}  // namespace

bool can_simulate(Algorithm algorithm, const CollectiveRequest& request, const Network& network) {
  check_request(algorithm, request);
  return rounds_of(algorithm, request, 0, 1, network) || memory_of_transfers(algorithm, request) <= max_memory;
}

NetworkSimulation simulate(Algorithm algorithm, const CollectiveRequest& request, int64_t elements,
                           int64_t element_size, const Network& network) {
  check_simulation(algorithm, request, elements, element_size, network);
  const int64_t memory = memory_of_transfers(algorithm, request);
  const auto rounds = rounds_of(algorithm, request, elements, element_size, network);
  if (rounds && (rounds->exact || memory > max_memory))
    return by_rounds(*rounds, algorithm, request, elements, element_size);
  LOCKSTEP_CHECK(memory <= max_memory, "[simulate] ", name_of(algorithm), " ", name_of(request.collective), " of ",
                 request.ranks, " ranks needs ", memory / max_memory,
                 " GB to simulate transfer by transfer; at most 1 GB is allowed: use fewer ranks");
  return simulate_transfers(algorithm, request, elements, element_size, network);
}

std::optional<NetworkSimulation> simulate_rounds(Algorithm algorithm, const CollectiveRequest& request,
                                                 int64_t elements, int64_t element_size, const Network& network) {
  check_simulation(algorithm, request, elements, element_size, network);
  const auto rounds = rounds_of(algorithm, request, elements, element_size, network);
  return rounds ? std::optional(by_rounds(*rounds, algorithm, request, elements, element_size)) : std::nullopt;
}

NetworkSimulation simulate_transfers(Algorithm algorithm, const CollectiveRequest& request, int64_t elements,
                                     int64_t element_size, const Network& network) {
  check_simulation(algorithm, request, elements, element_size, network);
  NetworkSimulation result;
  const int64_t n = request.ranks;
  Transfer last{-1, -1, -1, {}, {}, TransferAction::copy};
  const int64_t chunks = chunk_count(algorithm, request);
  PlaceMap<double> times(n, chunks, touches_few_places(algorithm, request));    // time at which a place has its data
  std::vector<double> out(static_cast<size_t>(n)), in(static_cast<size_t>(n));  // time at which a port is free
  std::vector<int64_t> bytes;                                                   // size of each chunk
  const int64_t parts = request.collective == Collective::all_to_all ? n : chunks;
  for (int64_t c = 0; c < parts; ++c) bytes.push_back(shard_range(elements, parts, c).size() * element_size);
  result.sent.resize(size_t(n));
  result.received.resize(size_t(n));
  visit_schedule(algorithm, request, [&](const Transfer& t) {
    const double ready = times.at(t.from, t.source);
    double& target = times.at(t.to, t.target);  // `ready` must be a copy: at() may move the table
    if (t.from == t.to) {
      target = t.action == TransferAction::reduce ? std::max(target, ready) : ready;
      return;
    }
    const int64_t size = bytes[size_t(t.source.chunk) % bytes.size()];
    const bool near =
        network.within && (request.hosts.empty() || request.hosts[size_t(t.from)] == request.hosts[size_t(t.to)]);
    const NetworkLink& link = near ? *network.within : network.between;
    const bool same_message = t.step == last.step && t.from == last.from && t.to == last.to;
    double& from = out[size_t(t.from)];
    double& to = in[size_t(t.to)];
    const double start = std::max({ready, from, to});
    from = to = start + (same_message ? 0 : link.latency) + double(size) / link.bandwidth;
    target = t.action == TransferAction::reduce ? std::max(target, to) : to;
    result.seconds = std::max(result.seconds, to);
    result.messages += !same_message;
    result.steps += t.step != last.step;
    result.sent[size_t(t.from)] += size;
    result.received[size_t(t.to)] += size;
    last = t;
  });
  return result;
}

std::optional<CostFormula> formula(Algorithm algorithm, const CollectiveRequest& request, int64_t bytes,
                                   const NetworkLink& link) {
  if (!has_schedule(algorithm, request.collective) || request.ranks < 1) return std::nullopt;
  const auto costs = costs_of(algorithm, request);
  if (!costs) return std::nullopt;
  return CostFormula{costs->text, costs->messages * link.latency + costs->volume * double(bytes) / link.bandwidth};
}

}  // namespace lockstep::dist
