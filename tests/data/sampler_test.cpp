// Samplers: PyTorch's golden numbers, and independence of the number of ranks.
// A number in a test's name is a row of docs/faults.md.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/json.h"
#include "data/safetensors.h"
#include "data/sampler.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

TEST_CASE("DistributedSampler: indices match PyTorch") {
  const SafeTensors file = SafeTensors::open(golden("sampler.safetensors"));
  int cases = 0;
  const Json rows = parse_json(file.metadata().at("cases"), "sampler.safetensors");
  for (const Json& row : rows.as_array()) {
    const std::string& name = row.at("name").as_string();
    CAPTURE(name);
    const Tensor want = file.tensor(name + "/indices");
    const int64_t n = row.at("n").as_int(), world = row.at("world").as_int();
    for (int64_t rank = 0; rank < world; ++rank) {
      DistributedSampler sampler(n, world, rank, {.shuffle = false, .drop_last = row.at("drop_last").as_bool()});
      sampler.set_epoch(row.at("epoch").as_int());
      const int64_t* first = want.data<int64_t>() + rank * want.size(1);
      CHECK(sampler.indices() == std::vector<int64_t>(first, first + want.size(1)));
      CHECK(sampler.size() == want.size(1));
    }
    ++cases;
  }
  CHECK(cases == 94);
}

TEST_CASE("permutations are permutations, and differ by seed and epoch") {
  for (const int64_t n : {0, 1, 2, 7, 1000}) {
    auto order = permutation(n, 1, 2);
    CHECK(order == permutation(n, 1, 2));
    if (n == 1000) {
      CHECK(order != permutation(n, 1, 3));
      CHECK(order != permutation(n, 2, 2));
    }
    std::sort(order.begin(), order.end());
    std::vector<int64_t> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    CHECK(order == all);
  }
  // Each index is equally likely at each position: 6000 shuffles of 4 give 1500 expected in each cell.
  int64_t counts[4][4] = {};
  for (int64_t epoch = 0; epoch < 6000; ++epoch) {
    const auto order = permutation(4, 5, epoch);
    for (size_t i = 0; i < 4; ++i) ++counts[i][order[i]];
  }
  for (auto& row : counts)
    for (const int64_t count : row) CHECK(std::abs(count - 1500) < 200);
}

TEST_CASE("sampler 43: the ranks of a shuffled epoch cover it; the exact form covers it once") {
  for (const int64_t n : {1, 5, 8, 33}) {
    for (const int64_t world : {1, 2, 3, 8}) {
      INFO("n ", n, ", world ", world);
      std::vector<int64_t> exact, padded, dropped;
      for (int64_t rank = 0; rank < world; ++rank) {
        const auto add = [&](std::vector<int64_t>& to, DistributedOptions options) {
          const auto mine = DistributedSampler(n, world, rank, options)(4);
          to.insert(to.end(), mine.begin(), mine.end());
        };
        add(exact, {.pad = false});
        add(padded, {});
        add(dropped, {.drop_last = true});
      }
      CHECK(int64_t(padded.size()) == (n + world - 1) / world * world);
      CHECK(int64_t(dropped.size()) == n / world * world);
      for (auto* list : {&exact, &padded, &dropped}) std::sort(list->begin(), list->end());
      CHECK(int64_t(exact.size()) == n);
      padded.erase(std::unique(padded.begin(), padded.end()), padded.end());
      CHECK(exact == padded);
      CHECK(std::adjacent_find(dropped.begin(), dropped.end()) == dropped.end());
    }
  }
}

TEST_CASE("sampler 43: MicroBatchSampler: the same micro-batches for every world") {
  const auto micro_batches = [](int64_t world, int64_t epoch) {  // ordered by step, then by rank
    const int64_t m = 8, size = 3;
    std::vector<std::vector<int64_t>> ranks;
    for (int64_t rank = 0; rank < world; ++rank)
      ranks.push_back(MicroBatchSampler(
          {.samples = 100, .micro_batch = size, .micro_batches = m, .world = world, .rank = rank, .seed = 3})(epoch));
    std::vector<int64_t> all;
    const int64_t share = m / world * size;
    for (int64_t step = 0; step < 100 / (m * size); ++step)
      for (const auto& mine : ranks)
        all.insert(all.end(), mine.begin() + step * share, mine.begin() + (step + 1) * share);
    return all;
  };
  for (const int64_t world : {2, 4, 8}) CHECK(micro_batches(world, 1) == micro_batches(1, 1));
  CHECK(micro_batches(1, 0) != micro_batches(1, 1));
  CHECK(micro_batches(1, 0).size() == 96);
}

TEST_CASE("RandomSampler: replacement and num_samples") {
  for (const int64_t count : {0, 3, 7, 20}) {
    CAPTURE(count);
    const RandomSampler replaced(7, {.replacement = true, .num_samples = count, .seed = 4}),
        dealt(7, {.num_samples = count, .seed = 4});
    for (const RandomSampler* sampler : {&replaced, &dealt}) {
      const auto indices = (*sampler)(2);
      CHECK(indices == (*sampler)(2));
      CHECK(int64_t(indices.size()) == count);
      for (const int64_t index : indices) CHECK((index >= 0 && index < 7));
      if (count == 20) CHECK(indices != (*sampler)(3));
    }
    auto indices = dealt(2);  // permutation after permutation
    for (int64_t at = 0; at < count; at += 7) {
      const auto begin = indices.begin() + at, end = indices.begin() + std::min(at + 7, count);
      if (at == 0) CHECK(std::equal(begin, end, permutation(7, 4, 2).begin()));
      std::sort(begin, end);
      CHECK(std::adjacent_find(begin, end) == end);
    }
  }
  CHECK(RandomSampler(9, 5)(1) == permutation(9, 5, 1));
  CHECK(RandomSampler(0, {.replacement = true})(0).empty());
  // With replacement each index is equally likely: 40000 draws of 4 give 10000 expected each.
  int64_t counts[4] = {};
  for (const int64_t index : RandomSampler(4, {.replacement = true, .num_samples = 40000})(0)) ++counts[index];
  for (const int64_t count : counts) CHECK(std::abs(count - 10000) < 500);
  CHECK_ERROR(RandomSampler(4, {.num_samples = -1}), "expected num_samples >= 0, and 0 of n = 0, got -1 of 4");
  CHECK_ERROR(RandomSampler(0, {.replacement = true, .num_samples = 2}), "got 2 of 0");
}

TEST_CASE("wrong samplers") {
  CHECK_ERROR(DistributedSampler(10, 2, 2), "expected a rank from 0 to 1, got 2");
  CHECK_ERROR(DistributedSampler(10, 2, -1), "expected a rank from 0 to 1, got -1");
  CHECK_ERROR(DistributedSampler(10, 0, 0), "expected world >= 1, got 0");
  CHECK_ERROR(DistributedSampler(10, 2, 0, {.drop_last = true, .pad = false}), "got both");
  CHECK_ERROR(MicroBatchSampler({.samples = 10, .micro_batches = 3, .world = 2}),
              "expected micro_batches a multiple of world 2, got 3");
  CHECK_ERROR(MicroBatchSampler({.samples = 10, .micro_batch = 6, .micro_batches = 2}),
              "expected samples for one step, 6 x 2, got 10");
  CHECK_ERROR(RandomSampler(-1), "expected n >= 0, got -1");
}
