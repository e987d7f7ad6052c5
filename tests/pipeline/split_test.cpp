// Layers split into stages: the largest stage is as small as possible, compared with every possible split.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "pipeline/simulate.h"
#include "pipeline/split.h"
#include "tensor/random.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::pipeline;

namespace {

/// The sum of each part.
std::vector<double> sums(const std::vector<double>& w, const std::vector<int>& bounds) {
  std::vector<double> all;
  for (size_t k = 0; k + 1 < bounds.size(); ++k)
    all.push_back(std::accumulate(w.begin() + bounds[k], w.begin() + bounds[k + 1], 0.0));
  return all;
}
double largest(const std::vector<double>& w, const std::vector<int>& bounds) {
  return std::ranges::max(sums(w, bounds));
}

/// The least cost of all ways to cut `layers` into parts that are not empty.
double best_of_all(int layers, int parts, const std::function<double(const std::vector<int>& bounds)>& cost) {
  double best = INFINITY;
  std::vector<int> bounds{0};
  const std::function<void()> cut = [&] {
    const int left = parts - int(bounds.size());  // cuts that are not chosen yet
    bounds.push_back(layers);
    if (left == 0) best = std::min(best, cost(bounds));
    for (int at = bounds.end()[-2] + 1; left > 0 && at <= layers - left; ++at) bounds.back() = at, cut();
    bounds.pop_back();
  };
  cut();
  return best;
}

}  // namespace

TEST_CASE("split: no cut is better, no part is empty") {
  uint64_t draw = 0;
  const auto random = [&](uint64_t below) { return philox({1, 2}, draw++)[0] % below; };
  for (int n = 1; n <= 9; ++n) {
    for (int parts = 1; parts <= n; ++parts) {
      for (int round = 0; round < 12; ++round) {
        std::vector<double> w;
        // Includes zeros and equal costs.
        for (int i = 0; i < n; ++i) w.push_back(round % 3 == 0 ? double(random(3)) : double(random(1000)) / 7);
        const std::vector<int> bounds = balance(w, parts);
        REQUIRE(int(bounds.size()) == parts + 1);
        CHECK(bounds[0] == 0);
        CHECK(bounds.back() == n);
        for (int k = 0; k < parts; ++k) CHECK(bounds[size_t(k)] < bounds[size_t(k) + 1]);
        CHECK(largest(w, bounds) ==
              doctest::Approx(best_of_all(n, parts, [&](const auto& cut) { return largest(w, cut); })));
      }
    }
  }
  CHECK(balance({1, 1, 1, 1, 1, 1, 1, 1}, 4) == std::vector<int>{0, 2, 4, 6, 8});
  CHECK(balance(std::vector<double>(2000, 1), 16)[8] == 1000);
}

TEST_CASE("split: several chunks a rank, near the best that there is") {
  for (const ScheduleKind kind : {ScheduleKind::interleaved, ScheduleKind::dualpipe_v}) {
    for (const auto& [stages, layers] : {std::pair{2, 5}, {2, 6}, {2, 9}, {3, 8}, {3, 10}, {4, 9}, {4, 12}}) {
      for (const double head : {1.0, 0.0, 2.5}) {
        CAPTURE(name_of(kind));
        CAPTURE(stages);
        CAPTURE(layers);
        CAPTURE(head);
        const PipelineSchedule schedule = make_schedule({kind, stages, 2 * stages});
        const int parts = schedule.virtual_stages();
        std::vector<double> w(size_t(layers), 1);
        w.back() = head;
        const double total = std::accumulate(w.begin(), w.end(), 0.0);
        const auto seconds = [&](const std::vector<int>& bounds) {
          StageCosts costs;
          for (const double sum : sums(w, bounds)) costs.weights.push_back(sum * parts / total);
          return simulate(schedule, costs).seconds;
        };
        const double best = best_of_all(layers, parts, seconds);
        const double ours = seconds(balance(w, schedule));
        CHECK(ours <= seconds(balance(w, parts)));
        CHECK(ours <= best * 1.03);
      }
    }
  }
  // 3 layers on both ranks.
  CHECK(balance(std::vector<double>(6, 1), make_schedule({ScheduleKind::dualpipe_v, 2, 8})) ==
        std::vector<int>{0, 1, 2, 4, 6});
  CHECK(balance(std::vector<double>(16, 1), make_schedule({ScheduleKind::interleaved, 2, 8})) ==
        std::vector<int>{0, 4, 8, 12, 16});
  CHECK(balance(std::vector<double>(6, 1), make_schedule({ScheduleKind::one_f_one_b, 3, 8})) ==
        std::vector<int>{0, 2, 4, 6});
  CHECK(balance(std::vector<double>(5, 0), make_schedule({ScheduleKind::dualpipe_v, 2, 8})).size() == 5);
}

TEST_CASE("split: the ways to choose a cut") {
  const std::vector<std::string> kinds{"Embedding", "TransformerBlock", "TransformerBlock", "LayerNorm", "function"};
  CHECK(weights_of(SplitBy::parse("uniform"), kinds, {}) == std::vector<double>{1, 1, 1, 1, 1});
  CHECK(weights_of(SplitBy::parse("parameters"), kinds, {5, 4, 3, 2, 1}) == std::vector<double>{5, 4, 3, 2, 1});
  CHECK(weights_of(SplitBy::parse("best"), kinds, {5, 4, 3, 2, 1}) == std::vector<double>{5, 4, 3, 2, 1});
  CHECK(weights_of(SplitBy::parse("type:block|norm$"), kinds, {}) == std::vector<double>{0, 1, 1, 1, 0});
  CHECK(weights_of(SplitBy::parse("type:FUNCTION"), kinds, {}) == std::vector<double>{0, 0, 0, 0, 1});
  CHECK(balance(weights_of(SplitBy::parse("type:transformer"), kinds, {}), 2) == std::vector<int>{0, 2, 5});
  CHECK(weights_of({SplitBy::Method::time, {}, {1, 2, 3, 4, 5}}, kinds, {}) == std::vector<double>{1, 2, 3, 4, 5});
  CHECK(to_string(SplitBy::parse("type:x")) == "type:x");
  CHECK_ERROR(weights_of(SplitBy::parse("type:Conv"), kinds, {}),
              "matches no layer; their kinds are Embedding, TransformerBlock, LayerNorm, function");
  CHECK_ERROR(weights_of(SplitBy::parse("type:("), kinds, {}), "not a regular expression");
  CHECK_ERROR(weights_of({SplitBy::Method::time, {}, {1}}, kinds, {}), "a time for each of 5 layers, got 1");
  CHECK_ERROR(SplitBy::parse("parameter"), "did you mean parameters?");
  CHECK_ERROR(SplitBy::parse("type:"), "type:PATTERN");
  CHECK_ERROR(balance({1, 2, 3}, 4), "at least one layer for each of 4 stages, got 3 layers; use at most 3 stages");
  CHECK_ERROR(balance({}, 1), "got 0 layers");
  CHECK_ERROR(balance({1, 2}, 0), "1 stage or more, got 0");
  CHECK_ERROR(balance({1, -2}, 1), "weights of 0 or more, got -2");
  CHECK_ERROR(balance({1, NAN}, 1), "weights of 0 or more");
}
