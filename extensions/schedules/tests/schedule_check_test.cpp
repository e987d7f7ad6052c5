// Every algorithm is right for every collective and number of ranks, and the checker finds planted errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/environment.h"
#include "dist/shard.h"
#include "dist/summation_tree.h"
#include "extensions/schedules/schedule_check.h"
#include "tests/dist/at_once.h"
#include "tests/dist/every_schedule.h"
#include "tests/dist/job.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

const Algorithm tree = parse_algorithm("tree"), halving_doubling = parse_algorithm("halving_doubling"),
                hierarchical = parse_algorithm("hierarchical"), server = parse_algorithm("server");

// Sanitizers slow this down many times and find nothing new with more ranks.
constexpr int thousand = sanitized ? 200 : 1000;

/// Placements of n ranks on m hosts: contiguous, round-robin, and hosts of very different sizes.
std::vector<std::vector<int>> layouts(int n) {
  std::vector<std::vector<int>> all{{}};
  for (const int m : {2, 3, 4}) {
    std::vector<int> blocks, dealt, uneven;
    for (int i = 0; i < n; ++i) {
      blocks.push_back(100 + i * m / n);
      dealt.push_back(i % m);
      uneven.push_back(i == 0 || i == n - 1 ? 7 : i < n / m);
    }
    all.insert(all.end(), {blocks, dealt, uneven});
  }
  return all;
}

/// "((0+1)+2)": the order of summation, defined independently of the code under test.
std::string tree_text(int64_t begin, int64_t end) {
  if (end - begin == 1) return str(begin);
  const int64_t middle = tree_split(begin, end);
  return str("(", tree_text(begin, middle), "+", tree_text(middle, end), ")");
}

}  // namespace

TEST_CASE("every schedule is right: all algorithms, collectives, roots, 1 to 64 ranks") {
  int64_t checked = 0;
  for_each_pair([&](Algorithm a, Collective c) {
    for (int n = 1; n <= 64; ++n) {
      std::set<int> roots{0, n / 2, n - 1};
      if (n <= 9)
        for (int root = 0; root < n; ++root) roots.insert(root);
      if (!has_root(c) && a != tree && a != server) roots = {0};
      for (const int root : roots) {
        for (const bool mean : {false, true}) {
          if (mean && (!is_reduction(c) || n > 20)) continue;
          const auto hosts = uses_hosts(a) && (n <= 20 || n % 8 == 0) ? layouts(n) : std::vector<std::vector<int>>{{}};
          for (const auto& layout : hosts) {
            const CollectiveRequest r{c, n, root, mean, layout};
            const CollectiveCheck check = check_schedule(a, r);
            ++checked;
            if (!check.right()) FAIL_CHECK(describe(a, r), ": ", check.errors[0]);
            CHECK(std::accumulate(check.sent.begin(), check.sent.end(), int64_t(0)) == check.transfers);
            // If an algorithm claims tree order, its schedule must have it; a schedule may also have it by chance.
            if (is_reduction(c) && adds_in_tree_order(a, r))
              CHECK_MESSAGE(check.all_in_tree_order(), describe(a, r), ": ", check.order(0));
          }
        }
      }
    }
  });
  CHECK(checked > 4000);
}

TEST_CASE("every schedule is right for 1000 ranks") {
  std::vector<int> hosts(thousand);
  for (int i = 0; i < thousand; ++i) hosts[size_t(i)] = i / 8;
  std::vector<std::pair<Algorithm, Collective>> pairs;
  for_each_pair([&](Algorithm a, Collective c) { pairs.emplace_back(a, c); });
  at_once(
      pairs,
      [&](const auto& pair) {
        const auto [a, c] = pair;
        const CollectiveRequest r{c, thousand, has_root(c) ? thousand / 3 : 0, false,
                                  uses_hosts(a) ? hosts : std::vector<int>{}};
        const CollectiveCheck check = check_schedule(a, r);
        if (!check.right()) FAIL_CHECK(describe(a, r), ": ", check.errors[0]);
        if (is_reduction(c)) CHECK(check.all_in_tree_order() == adds_in_tree_order(a, r));
      },
      std::thread::hardware_concurrency());
}

TEST_CASE("the order of addition: direct is the tree for every n, every rank's sum the same") {
  for (int n = 1; n <= 40; ++n) {
    for (const Collective c : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
      const CollectiveCheck check = check_schedule(Algorithm::direct, {c, n, n / 2});
      CHECK(check.all_in_tree_order());
      for (int chunk = 0; chunk < n; ++chunk) CHECK(check.order(chunk) == tree_text(0, n));
      CHECK(check.slots <= std::bit_width(unsigned(n)));
    }
    CHECK(check_schedule(tree, {Collective::all_reduce, n}).all_in_tree_order());
    CHECK(check_schedule(halving_doubling, {Collective::all_reduce, n}).all_in_tree_order() ==
          std::has_single_bit(unsigned(n)));
    CHECK(check_schedule(Algorithm::ring, {Collective::all_reduce, n}).all_in_tree_order() == (n <= 2));
  }
  CHECK(check_schedule(hierarchical, {Collective::all_reduce, 8, 0, false, {0, 0, 1, 1, 2, 2, 3, 3}})
            .all_in_tree_order());
  CHECK_FALSE(check_schedule(hierarchical, {Collective::all_reduce, 4, 0, false, {0, 1, 0, 1}}).all_in_tree_order());
  CHECK(check_schedule(Algorithm::ring, {Collective::all_reduce, 4}).order(0) == "(0+((1+2)+3))");
  CHECK(check_schedule(server, {Collective::reduce, 5, 2, true}).order(0) == "mean((((0+1)+2)+3)+4)");
  CHECK(check_schedule(Algorithm::ring, {Collective::all_gather, 4}).order(0).empty());
  CHECK_ERROR(check_schedule(Algorithm::ring, {Collective::all_reduce, 4}).order(4),
              "expected a chunk from 0 to 3, got 4");
}

TEST_CASE("steps, messages and chunks match the formulas") {
  for (int n = 1; n <= 33; ++n) {
    const int64_t m = n - 1, log = std::bit_width(unsigned(n - 1));
    struct Row {
      Algorithm algorithm;
      Collective collective;
      int64_t rounds, sent;
    };  // sent: by the busiest rank, in chunks
    const Row rows[] = {{Algorithm::ring, Collective::all_reduce, 2 * m, 2 * m},
                        {Algorithm::ring, Collective::reduce_scatter, m, m},
                        {Algorithm::ring, Collective::all_gather, m, m},
                        {Algorithm::ring, Collective::broadcast, m, n > 1},
                        {Algorithm::direct, Collective::all_reduce, int64_t(std::bit_ceil(unsigned(n))) - 1 + m, 2 * m},
                        {Algorithm::direct, Collective::all_gather, m, m},
                        {Algorithm::direct, Collective::all_to_all, m, m},
                        {tree, Collective::all_reduce, 2 * log, log},
                        {tree, Collective::gather, log, n / 2},
                        {server, Collective::all_reduce, 2 * m, m},
                        {server, Collective::gather, m, n > 1},
                        {Algorithm::one_shot, Collective::all_reduce, m, m},
                        {Algorithm::in_place, Collective::all_reduce, log + m, 2 * m},
                        {Algorithm::in_place, Collective::broadcast, m, m}};
    for (const Row& row : rows) {
      if (row.algorithm == tree && row.collective == Collective::gather && !std::has_single_bit(unsigned(n))) continue;
      CAPTURE(describe(row.algorithm, {row.collective, n}));
      const CollectiveCheck check = check_schedule(row.algorithm, {row.collective, n});
      CHECK(check.rounds == row.rounds);
      CHECK(*std::max_element(check.sent.begin(), check.sent.end()) == row.sent);
    }
    // All ranks send and receive the same number of chunks, and that is the minimum.
    for (const Algorithm a : {Algorithm::ring, Algorithm::direct, halving_doubling}) {
      if (a == halving_doubling && !std::has_single_bit(unsigned(n))) continue;
      const CollectiveCheck check = check_schedule(a, {Collective::all_reduce, n});
      CHECK(std::all_of(check.sent.begin(), check.sent.end(), [&](int64_t x) { return x == 2 * m; }));
      CHECK(std::all_of(check.received.begin(), check.received.end(), [&](int64_t x) { return x == 2 * m; }));
      if (a == halving_doubling) CHECK(check.rounds == 2 * log);
    }
  }
  for (const int hosts : {1, 2, 3, 4, 5})
    for (const int each : {1, 2, 3, 4, 5, 8}) {
      CollectiveRequest request{Collective::all_reduce, hosts * each};
      for (int rank = 0; rank < request.ranks; ++rank) request.hosts.push_back(rank / each);
      CAPTURE(describe(hierarchical, request));
      CHECK(check_schedule(hierarchical, request).rounds ==
            int64_t(std::bit_ceil(unsigned(hosts)) + std::bit_ceil(unsigned(each))) + hosts + each - 4);
    }
}

TEST_CASE("the checker finds planted mistakes") {
  const CollectiveRequest all_reduce{Collective::all_reduce, 4};
  const auto ring = make_schedule(Algorithm::ring, all_reduce);
  const auto errors = [](const std::vector<Transfer>& list, const CollectiveRequest& r, int64_t chunks = 4) {
    return check_transfers(list, r, chunks).errors;
  };
  const auto changed = [&](size_t at, auto&& change) {
    auto list = ring;
    change(list[at]);
    return list;
  };
  REQUIRE(errors(ring, all_reduce).empty());
  // ring[1] is: step 0, rank 1 -> rank 2, chunk 0
  std::vector<Transfer> missing = ring, doubled = ring, late = ring, swapped = ring, scaled = ring;
  missing.erase(missing.begin() + 1);
  doubled.insert(doubled.begin() + 12, Transfer{3, 1, 0, {0, 0}, {0, 0}, TransferAction::reduce});
  for (size_t i = 13; i < doubled.size(); ++i) ++doubled[i].step;
  std::swap(swapped[0], swapped[23]);
  scaled.insert(scaled.begin() + 12, Transfer{3, 0, 0, {0, 0}, {0, 0}, TransferAction::scale});
  const Transfer back{0, 1, 0, {3, 0}, {3, 0}, TransferAction::reduce},
      inside{0, 1, 1, {2, 0}, {3, 0}, TransferAction::copy};
  const std::pair<std::vector<Transfer>, const char*> rows[] = {
      {missing, "lacks the term of rank 1"},
      {doubled, "twice"},
      {changed(1, [](Transfer& t) { t.source.chunk = 3; }), "rank 1"},
      {changed(1, [](Transfer& t) { t.target.chunk = 1; }),
       "step 0: rank 2 -> rank 3 (chunk 1 to chunk 1) reads what rank 1 writes in the same step: they wait for each "
       "other"},
      {changed(1, [&](Transfer& t) { t = back; }), "in the same step: they wait for each other"},
      {changed(1, [](Transfer& t) { t.to = 1; }), "has the same source and target"},
      {changed(5, [](Transfer& t) { t.action = TransferAction::copy; }), "lacks the term of rank"},
      {changed(14, [](Transfer& t) { t.action = TransferAction::reduce; }), "twice"},
      {changed(1, [](Transfer& t) { t.to = 4; }), "names a rank out of range"},
      {changed(1, [](Transfer& t) { t.source.chunk = 4; }), "names a chunk or slot out of range"},
      {changed(1, [](Transfer& t) { t.source.slot = -1; }), "names a chunk or slot out of range"},
      {changed(1, [](Transfer& t) { t.source.slot = 1; }),
       "step 0: rank 1 -> rank 2 (chunk 0 slot 1 to chunk 0) reads a place that has not been written yet"},
      {changed(1, [](Transfer& t) { t.target.slot = 1; }), "adds to a place that has not been written yet"},
      {swapped, "comes after a later step"},
      {changed(1, [&](Transfer& t) { t = inside; }), "writes where rank 0 writes in the same step"},
      {scaled, "divided"},
      {changed(1, [](Transfer& t) { t.action = TransferAction::scale; }),
       "divides from one place into another; it must do so in place"},
  };
  for (const auto& [list, expected] : rows) {
    std::string all;
    for (const auto& one : errors(list, all_reduce)) all += one + "\n";
    CHECK_MESSAGE(contains(all, expected), "expected ", expected, ", got ", all);
  }
  CHECK(contains(errors(ring, {Collective::all_reduce, 4, 0, true})[0], "was not divided by the number of ranks"));
  CHECK(contains(errors({}, {Collective::broadcast, 3, 1}, 1)[0],
                 "at the end rank 0 should have chunk 0 of rank 1 as chunk 0, but has nothing"));
  CHECK(contains(errors({}, {Collective::gather, 2, 1}, 2)[0],
                 "should have chunk 0 of rank 0 as chunk 0, but has nothing"));
  // Sums computed on several ranks count as equal only if they are added in the same order.
  const CollectiveRequest two{Collective::all_reduce, 2}, three{Collective::all_reduce, 3};
  const std::vector<Transfer> swap{{0, 0, 1, {0, 0}, {0, 1}, TransferAction::copy},
                                   {0, 1, 0, {0, 0}, {0, 1}, TransferAction::copy},
                                   {1, 0, 0, {0, 1}, {0, 0}, TransferAction::reduce},
                                   {1, 1, 1, {0, 1}, {0, 0}, TransferAction::reduce}};
  CHECK(errors(swap, two, 1).empty());
  std::vector<Transfer> rotate;
  for (int r = 0; r < 3; ++r)
    for (int s = 1; s < 3; ++s) rotate.push_back({0, r, (r + s) % 3, {0, 0}, {0, s}, TransferAction::copy});
  for (int s = 1; s < 3; ++s)
    for (int r = 0; r < 3; ++r) rotate.push_back({s, r, r, {0, s}, {0, 0}, TransferAction::reduce});
  REQUIRE_FALSE(errors(rotate, three, 1).empty());
  CHECK(contains(errors(rotate, three, 1)[0], "differs between ranks"));
}

TEST_CASE("the checker finds every single transfer that is lost, and every one that is done twice") {
  for_each_pair([&](Algorithm a, Collective c) {
    for (const int n : {2, 3, 4, 5}) {
      const CollectiveRequest r{c, n, n - 1, is_reduction(c),
                                uses_hosts(a) && n == 5 ? std::vector<int>{0, 0, 1, 1, 1} : std::vector<int>{}};
      const auto list = make_schedule(a, r);
      const int64_t chunks = chunk_count(a, r);
      for (size_t i = 0; i < list.size(); ++i) {
        auto lost = list;
        lost.erase(lost.begin() + std::ptrdiff_t(i));
        INFO(describe(a, r), ", transfer ", i);
        // halving_doubling's broadcast sends some chunks twice, so losing one copy is harmless.
        if (!(a == halving_doubling && c == Collective::broadcast))
          CHECK_FALSE(check_transfers(lost, r, chunks).right());
        if (list[i].action == TransferAction::copy) continue;
        auto twice = list;
        twice.insert(twice.begin() + std::ptrdiff_t(i), list[i]);
        for (size_t k = i + 1; k < twice.size(); ++k) ++twice[k].step;
        CHECK_FALSE(check_transfers(twice, r, chunks).right());
      }
    }
  });
}

TEST_CASE("the checker refuses what would take too much memory") {
  CHECK_ERROR(check_schedule(Algorithm::ring, {Collective::all_reduce, 40000}), "at most 4 GiB are allowed");
}
