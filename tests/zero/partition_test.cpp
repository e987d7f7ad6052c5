// The partition: properties for every list of sizes and every number of ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/messages.h"
#include "zero/partition.h"

using namespace lockstep;
using namespace lockstep::zero;
using dist::Range;

namespace {

using Sizes = std::vector<int64_t>;
const std::vector<Sizes> lists{{},
                               {0},
                               {0, 0, 0},
                               {1},
                               {1, 1, 1},
                               {16},
                               {17},
                               {4095},
                               {4096},
                               {4097},
                               {100003},
                               {7, 0, 13, 4096, 1},
                               {65536, 65536},
                               {3, 40961, 5, 8191, 2, 12289, 0, 1},
                               {50257 * 8, 1024 * 8, 8, 8, 24 * 8, 24, 64, 8, 8, 8, 8, 256, 32, 256, 8},
                               {1, 1000000, 1, 1, 1, 4096 * 3, 2, 99991},
                               Sizes(100, 101)};

/// Checks that every element of every parameter belongs to exactly one rank, in order, and that cuts are at block
/// boundaries.
void check_layout(const Layout& layout) {
  int64_t before = 0;
  for (size_t i = 0; i < layout.sizes.size(); ++i) {
    CHECK(layout.offsets[i] >= before);
    CHECK(layout.offsets[i] % alignment == 0);
    before = layout.offsets[i] + layout.sizes[i];
    int64_t next = 0;
    for (int rank = 0; rank < layout.world; ++rank) {
      const Range owned = layout.owned(i, rank), range = layout.range(rank);
      if (owned.size() == 0) continue;
      CHECK(owned.begin == next);
      CHECK(owned.begin % norm_block == 0);
      CHECK(layout.offsets[i] + owned.begin >= range.begin);
      CHECK(layout.offsets[i] + owned.end <= range.end);
      next = owned.end;
    }
    CHECK(next == layout.sizes[i]);
  }
  CHECK(before <= layout.full());
}

}  // namespace

TEST_CASE("partition: every element has one owner, cuts lie on block boundaries, shards are equal") {
  for (const Sizes& sizes : lists) {
    for (int world = 1; world <= 8; ++world) {
      CAPTURE(sizes.size());
      CAPTURE(world);
      const Layout layout = lay_out(sizes, world);
      check_layout(layout);
      CHECK(layout.full() == world * layout.shard);
      CHECK(layout.numel() == std::accumulate(sizes.begin(), sizes.end(), int64_t(0)));
      for (int rank = 0; rank < world; ++rank)
        CHECK(layout.range(rank) == dist::shard_range(layout.full(), world, rank));
      CHECK(layout.padding() <= int64_t(sizes.size()) * alignment +
                                    (world == 1 ? alignment : 2 * int64_t(world) * (norm_block + alignment)));
      for (int owner = 0; owner < world; ++owner) {
        const Layout at = lay_out_at(sizes, world, owner);
        check_layout(at);
        CHECK(at.range(owner).size() == at.full());
        CHECK(at.padding() <= int64_t(sizes.size()) * alignment);
      }
    }
  }
}

TEST_CASE("partition: sizes that divide need no padding") {
  for (const int world : {1, 2, 4, 8}) {
    CHECK(lay_out({8 * norm_block, 16 * norm_block, 8 * norm_block}, world).padding() == 0);
    CHECK(lay_out(Sizes(32, 16), world).padding() == 0);
  }
  const Layout a = lay_out({3 * norm_block, norm_block}, 2);
  CHECK(a.owned(0, 0) == Range{0, 2 * norm_block});
  CHECK(a.owned(0, 1) == Range{2 * norm_block, 3 * norm_block});
  CHECK(a.owned(1, 0).size() == 0);
  CHECK(a.owned(1, 1) == Range{0, norm_block});
}

TEST_CASE("partition: owners are balanced") {
  const Sizes sizes{5, 100, 30, 30, 40, 0, 1};
  for (int world = 1; world <= 8; ++world) {
    const std::vector<int> owners = assign_owners(sizes, world);
    Sizes load(size_t(world), 0);
    for (size_t i = 0; i < sizes.size(); ++i) load[size_t(owners[i])] += sizes[i];
    CHECK(*std::max_element(load.begin(), load.end()) <= std::max<int64_t>(100, (206 + world - 1) / world + 40));
  }
  CHECK(assign_owners({1, 1, 1, 1}, 2) == std::vector<int>{0, 1, 0, 1});
  CHECK_ERROR(lay_out({-1}, 2), "sizes >= 0, got -1");
  CHECK_ERROR(lay_out({1}, 0), "1 rank or more, and an owner below their number, got 0 ranks");
}

TEST_CASE("partition: bytes of model state match the paper") {
  // 7.5 billion parameters on 64 ranks.
  for (const auto& [stage, gigabytes] : {std::pair{0, 120.}, {1, 31.4}, {2, 16.6}, {3, 1.9}})
    CHECK(model_state(stage, 7.5e9, 64).total() / 1e9 == doctest::Approx(gigabytes).epsilon(0.02));
}
