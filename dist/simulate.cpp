#include "dist/simulate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "dist/schedules/place_map.h"
#include "dist/shard.h"
#include "tensor/check.h"

namespace lockstep::dist {
namespace {

void check(const Link& link, const char* which) {
  LOCKSTEP_CHECK(link.latency >= 0 && std::isfinite(link.latency), "[simulate] expected a latency ", which, " of 0 s or more, got ", link.latency);
  LOCKSTEP_CHECK(link.bandwidth > 0 && std::isfinite(link.bandwidth), "[simulate] expected a bandwidth ", which, " of more than 0 B/s, got ", link.bandwidth);
}

}  // namespace

Simulation simulate(Algorithm algorithm, const Request& request, int64_t elements, int64_t element_size, const Network& network) {
  check(network.between, "between hosts");
  if (network.within) check(*network.within, "within a host");
  LOCKSTEP_CHECK(elements >= 0 && element_size > 0, "[simulate] expected 0 elements of 1 byte or more, got ", elements, " of ", element_size);
  Simulation result;
  const int64_t n = request.ranks;
  Transfer last{-1, -1, -1, {}, {}, Action::copy};
  std::optional<PlaceMap<double>> times;  // when a place has its data
  std::vector<double> out, in;  // when a port is free
  std::vector<int64_t> bytes;   // of a chunk
  const auto prepare = [&] {    // after the request was checked
    const int64_t chunks = chunk_count(algorithm, request);
    const int64_t parts = request.collective == Collective::all_to_all ? n : chunks;
    for (int64_t c = 0; c < parts; ++c) bytes.push_back(shard_range(elements, parts, c).size() * element_size);
    times.emplace(n, chunks);
    out.resize(size_t(n));
    in.resize(size_t(n));
    result.sent.resize(size_t(n));
    result.received.resize(size_t(n));
  };
  LOCKSTEP_CHECK(n >= 1, "[simulate] expected 1 rank or more, got ", n);
  prepare();
  visit_schedule(algorithm, request, [&](const Transfer& t) {
    const double ready = times->at(t.from, t.source);
    double& target = times->at(t.to, t.target);  // (`ready` is a copy: this may move it)
    if (t.from == t.to) {
      target = t.action == Action::reduce ? std::max(target, ready) : ready;
      return;
    }
    const int64_t size = bytes[size_t(t.source.chunk) % bytes.size()];
    const bool near = network.within && (request.hosts.empty() || request.hosts[size_t(t.from)] == request.hosts[size_t(t.to)]);
    const Link& link = near ? *network.within : network.between;
    const bool same_message = t.step == last.step && t.from == last.from && t.to == last.to;
    double& from = out[size_t(t.from)];
    double& to = in[size_t(t.to)];
    const double start = std::max({ready, from, to});
    from = to = start + (same_message ? 0 : link.latency) + double(size) / link.bandwidth;
    target = t.action == Action::reduce ? std::max(target, to) : to;
    result.seconds = std::max(result.seconds, to);
    result.messages += !same_message;
    result.steps += t.step != last.step;
    result.sent[size_t(t.from)] += size;
    result.received[size_t(t.to)] += size;
    last = t;
  });
  return result;
}

std::optional<Formula> formula(Algorithm algorithm, const Request& request, int64_t bytes, const Link& link) {
  if (!has_schedule(algorithm, request.collective) || request.ranks < 1) return std::nullopt;
  const double n = request.ranks, log = std::bit_width(unsigned(request.ranks - 1));
  const bool power = std::has_single_bit(unsigned(request.ranks));
  double m = 1;  // hosts
  if (algorithm == Algorithm::hierarchical && !request.hosts.empty()) {
    std::map<int, int> sizes;
    for (const int host : request.hosts) ++sizes[host];
    m = double(sizes.size());
    for (const auto& [host, size] : sizes) if (size != sizes.begin()->second || !std::has_single_bit(unsigned(size))) return std::nullopt;
  }
  const double share = (n - 1) / n;
  struct Costs { double messages, volume; const char* text; };
  std::optional<Costs> costs;
  switch (algorithm) {
    case Algorithm::ring:
      switch (request.collective) {
        case Collective::all_reduce: costs = {2 * (n - 1), 2 * share, "2(n-1)·α + 2(n-1)/n·S/β"}; break;
        case Collective::broadcast:
        case Collective::reduce: costs = {n - 1, n - 1, "(n-1)·α + (n-1)·S/β"}; break;
        default: costs = {n - 1, share, "(n-1)·α + (n-1)/n·S/β"};
      }
      break;
    case Algorithm::direct:
      switch (request.collective) {
        case Collective::all_reduce:
          if (power) costs = {2 * (n - 1), 2 * share, "2(n-1)·α + 2(n-1)/n·S/β"};
          break;
        case Collective::reduce_scatter:
          if (power) costs = {n - 1, share, "(n-1)·α + (n-1)/n·S/β"};
          break;
        case Collective::broadcast: costs = {2 * (n - 1), 2 * share, "2(n-1)·α + 2(n-1)/n·S/β"}; break;
        case Collective::reduce:
          if (power) costs = {2 * (n - 1), 2 * share, "2(n-1)·α + 2(n-1)/n·S/β"};
          break;
        default: costs = {n - 1, share, "(n-1)·α + (n-1)/n·S/β"};
      }
      break;
    case Algorithm::tree:
      switch (request.collective) {
        case Collective::all_reduce: costs = {2 * log, 2 * log, "2·log₂n·α + 2·log₂n·S/β"}; break;
        case Collective::broadcast:
        case Collective::reduce: costs = {log, log, "log₂n·α + log₂n·S/β"}; break;
        case Collective::gather:
        case Collective::scatter:
          if (power) costs = {log, share, "log₂n·α + (n-1)/n·S/β"};
          break;
        default: break;
      }
      break;
    case Algorithm::halving_doubling:
      if (!power) break;
      if (request.collective == Collective::reduce_scatter || request.collective == Collective::all_gather) costs = {log, share, "log₂n·α + (n-1)/n·S/β"};
      else costs = {2 * log, 2 * share, "2·log₂n·α + 2(n-1)/n·S/β"};
      break;
    case Algorithm::hierarchical: {
      const double steps = n / m - 1 + m - 1;
      if (request.collective != Collective::all_gather && !power) break;
      if (request.collective == Collective::all_reduce) costs = {2 * steps, 2 * share, "2(k+m-2)·α + 2(n-1)/n·S/β, m hosts of k"};
      if (request.collective == Collective::all_gather || request.collective == Collective::reduce_scatter) {
        costs = {steps, share, "(k+m-2)·α + (n-1)/n·S/β, m hosts of k"};
      }
      break;
    }
    case Algorithm::server:
      switch (request.collective) {
        case Collective::all_reduce: costs = {2 * (n - 1), 2 * (n - 1), "2(n-1)·α + 2(n-1)·S/β"}; break;
        case Collective::broadcast:
        case Collective::reduce: costs = {n - 1, n - 1, "(n-1)·α + (n-1)·S/β"}; break;
        case Collective::gather:
        case Collective::scatter: costs = {n - 1, share, "(n-1)·α + (n-1)/n·S/β"}; break;
        default: break;
      }
      break;
    case Algorithm::one_shot: costs = {n - 1, n - 1, "(n-1)·α + (n-1)·S/β"}; break;
    case Algorithm::automatic: break;
  }
  if (!costs) return std::nullopt;
  return Formula{costs->text, costs->messages * link.latency + costs->volume * double(bytes) / link.bandwidth};
}

}  // namespace lockstep::dist
