// Simulated collectives: times and counted bytes match the textbook formulas.
#include "extensions/forecast/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "dist/shard.h"
#include "tests/dist/every_schedule.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

const Algorithm tree = parse_algorithm("tree"), halving_doubling = parse_algorithm("halving_doubling"),
                hierarchical = parse_algorithm("hierarchical"), server = parse_algorithm("server");

}  // namespace

TEST_CASE("simulated times match the textbook formulas") {
  const Network network{{5e-6, 25e9}, {}};
  int64_t compared = 0;
  for_each_pair([&](Algorithm a, Collective c) {
    for (const int n : {1, 2, 3, 4, 5, 7, 8, 16, 31, 32}) {
      std::vector<int> hosts;
      for (int i = 0; uses_hosts(a) && i < n; ++i) hosts.push_back(i * 4 / std::max(n, 4));
      const CollectiveRequest r{c, n, 0, false, hosts};
      const int64_t bytes = 1 << 20;
      const auto expected = formula(a, r, bytes, network.between);
      if (!expected) continue;
      const NetworkSimulation s = simulate(a, r, bytes, 1, network);
      CHECK_MESSAGE(s.seconds == doctest::Approx(expected->seconds).epsilon(0.001), describe(a, r), " ",
                    expected->text);
      ++compared;
    }
  });
  CHECK(compared > 180);
  // Schedules without a formula: their times are not below the least time that their bytes take.
  CHECK_FALSE(formula(halving_doubling, {Collective::all_reduce, 6}, 1, network.between).has_value());
  CHECK_FALSE(formula(Algorithm::ring, {Collective::all_to_all, 6}, 1, network.between).has_value());
  for (int n = 2; n < 20; ++n) {
    for (const Algorithm a : all_algorithms()) {
      const double least = 2. * (n - 1) / n * 1e6 / 25e9;
      CHECK(simulate(a, {Collective::all_reduce, n}, 1000000, 1, network).seconds >= least * 0.999);
    }
  }
}

TEST_CASE("rounds of ranks that all do the same give what their transfers give") {
  const Network networks[] = {{}, {{0, 3}, {}}, {{1, 1}, NetworkLink{2, 3}}, {{5, 2}, NetworkLink{1, 7}}};
  int64_t exact = 0, compared = 0;
  for_each_pair([&](Algorithm a, Collective c) {
    for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 24, 27, 32}) {
      for (const int k : {0, 1, 2, 3, 4, 8}) {  // ranks per host
        if (k > 0 && (n % k != 0 || n == k)) continue;
        CollectiveRequest r{c, n};
        for (int i = 0; k > 0 && i < n; ++i) r.hosts.push_back(100 - i / k);
        for (const int64_t elements : {0, 1, 32, 37, 1024}) {
          for (const Network& network : networks) {
            const auto rounds = simulate_rounds(a, r, elements, 4, network);
            if (!rounds) continue;
            const NetworkSimulation s = simulate_transfers(a, r, elements, 4, network);
            const bool power = std::has_single_bit(unsigned(n)), mixed = network.within && k > 1;
            const double element =
                4 / std::min(network.between.bandwidth, network.within ? network.within->bandwidth : 1e30);
            // The seconds by which simulate_rounds() may exceed simulate_transfers() where it is only approximate.
            double over = 0;
            if (a == halving_doubling && !power) over = element * double((elements + n - 1) / n);
            if (elements % n != 0 && ((a == Algorithm::ring && mixed) ||
                                      (is_reduction(c) && !power && (a == Algorithm::direct || uses_hosts(a)))))
              over = element * double(s.steps * (k > 0 ? n / k : 1));
            const bool right = over > 0 ? s.seconds <= rounds->seconds * (1 + 1e-12) &&
                                              rounds->seconds <= (s.seconds + over) * (1 + 1e-12)
                               : power && !mixed ? s.seconds == rounds->seconds
                                                 : s.seconds == doctest::Approx(rounds->seconds).epsilon(1e-12);
            CHECK_MESSAGE((right && s.steps == rounds->steps && s.messages == rounds->messages &&
                           s.sent == rounds->sent && s.received == rounds->received),
                          describe(a, r), " ", elements, ": ", s.seconds, " ", rounds->seconds);
            ++compared;
            exact += over == 0;
          }
        }
      }
    }
  });
  CHECK(compared > 9000);
  CHECK(exact > 7000);
  // simulate_rounds() gives nothing if ranks do different things, links differ, or a host's ranks are not contiguous.
  CHECK_FALSE(simulate_rounds(tree, {Collective::all_reduce, 4}, 1, 4, {}).has_value());
  CHECK_FALSE(simulate_rounds(Algorithm::direct, {Collective::broadcast, 4}, 1, 4, {}).has_value());
  CHECK_FALSE(simulate_rounds(Algorithm::direct, {Collective::all_reduce, 4, 0, false, {0, 0, 1, 1}}, 1, 4, networks[2])
                  .has_value());
  for (const auto& hosts : {std::vector<int>{0, 1, 0, 1}, {0, 0, 1, 2}, {0, 0, 0, 1}, {0, 0, 1, 1, 0, 0}}) {
    CHECK_FALSE(simulate_rounds(hierarchical, {Collective::all_reduce, int(hosts.size()), 0, false, hosts}, 1, 4, {})
                    .has_value());
  }
}

TEST_CASE("very many ranks are simulated") {
  const Network network{{5e-6, 25e9}, {}};
  const int64_t bytes = 100'000'000;
  const int many = 1 << 16;
  for (const int n : {many, many - 1}) {
    for (const Algorithm a : all_algorithms()) {
      if (a == Algorithm::in_place) continue;  // so many ranks do not share memory
      CollectiveRequest r{Collective::all_reduce, n};
      for (int i = 0; uses_hosts(a) && i < n; ++i) r.hosts.push_back(i / (n == many ? 8 : 3));
      CHECK(can_simulate(a, r, network));
      const NetworkSimulation s = simulate(a, r, bytes, 1, network);
      const auto expected = formula(a, r, bytes, network.between);
      if (expected)
        CHECK_MESSAGE(s.seconds == doctest::Approx(expected->seconds).epsilon(0.01),
                      describe(a, {Collective::all_reduce, n}), " ", expected->text);
      if (a != Algorithm::ring) continue;
      CHECK(s.messages == 2 * int64_t(n - 1) * n);
      CHECK(s.steps == 2 * (n - 1));
    }
  }
  // In a gather, most pairs (rank, chunk) do not occur.
  const NetworkSimulation gather = simulate(tree, {Collective::gather, many / 4}, bytes, 1, network);
  CHECK(gather.received[0] == bytes - shard_range(bytes, many / 4, 0).size());
  const CollectiveRequest broadcast{Collective::broadcast, many};
  CHECK_FALSE(can_simulate(Algorithm::direct, broadcast, network));
  CHECK_ERROR(simulate(Algorithm::direct, broadcast, bytes, 1, network),
              "direct broadcast of 65536 ranks needs 34 GB to simulate transfer by transfer; at most 1 GB is "
              "allowed: use fewer ranks");
}

TEST_CASE("bytes of a simulation are counted exactly, whatever the size") {
  for (const Algorithm a : all_algorithms()) {
    for (const int n : {1, 2, 3, 5, 8}) {
      for (const int64_t elements : {0, 1, 7, 64, 1009}) {
        const NetworkSimulation s = simulate(a, {Collective::all_reduce, n}, elements, 4, {});
        const int64_t sent = std::accumulate(s.sent.begin(), s.sent.end(), int64_t(0));
        CHECK(sent == std::accumulate(s.received.begin(), s.received.end(), int64_t(0)));
        if (a == Algorithm::one_shot) {
          CHECK(sent == n * (n - 1) * elements * 4);
          continue;
        }
        const bool least = a == Algorithm::ring || a == Algorithm::direct || uses_hosts(a) ||
                           a == Algorithm::in_place || std::has_single_bit(unsigned(n));
        if (least || a == tree || a == server) CHECK(sent == 2 * (n - 1) * elements * 4);
        if (a != Algorithm::ring) continue;
        // In two rounds over all chunks, a rank leaves out its own chunk once and its right neighbor's once.
        for (int rank = 0; rank < n; ++rank) {
          const int64_t next = shard_range(elements, n, (rank + 1) % n).size(),
                        own = shard_range(elements, n, rank).size();
          CHECK(s.sent[size_t(rank)] == 4 * (2 * elements - next - own));
        }
      }
    }
  }
}

TEST_CASE("hierarchical is faster across several hosts") {
  std::vector<int> hosts(64);
  for (int i = 0; i < 64; ++i) hosts[size_t(i)] = i / 8;
  const Network network{{20e-6, 1e9}, NetworkLink{1e-6, 50e9}};
  const auto time = [&](Algorithm a) {
    return simulate(a, {Collective::all_reduce, 64, 0, false, hosts}, 1 << 24, 1, network).seconds;
  };
  CHECK(time(hierarchical) < 0.25 * time(Algorithm::ring));
  // The first partners of halving-doubling are on the same host.
  CHECK(time(halving_doubling) < 0.25 * time(Algorithm::ring));
}

TEST_CASE("simulations reject values") {
  const CollectiveRequest four{Collective::all_reduce, 4};
  CHECK_ERROR(simulate(Algorithm::ring, four, -1, 4, {}), "expected 0 elements");
  CHECK_ERROR(simulate(Algorithm::ring, four, 1, 4, {{-1, 1}, {}}), "expected a latency");
  CHECK_ERROR(simulate(Algorithm::ring, four, 1, 4, {{0, 0}, {}}), "expected a bandwidth");
}
