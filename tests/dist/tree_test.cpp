// The rule by which trees are split, and the order of summation.
#include <doctest/doctest.h>

#include <random>

#include "dist/shard.h"
#include "dist/summation_tree.h"
#include "tensor/ops.h"

using namespace lockstep;
using namespace lockstep::dist;

TEST_CASE("shard_range covers everything once, in order, sizes differ by one at most") {
  for (const int64_t n : {0, 1, 2, 7, 8, 1000, 1009})
    for (int64_t world = 1; world <= 9; ++world) {
      int64_t at = 0;
      for (int64_t rank = 0; rank < world; ++rank) {
        const Range r = shard_range(n, world, rank);
        CHECK(r.begin == at);
        CHECK(r.size() >= n / world);
        CHECK(r.size() <= n / world + 1);
        at = r.end;
      }
      CHECK(at == n);
    }
}

// The definition, written independently.
static float tree(const std::vector<float>& leaves, int64_t begin, int64_t end) {
  if (end - begin == 1) return leaves[size_t(begin)];
  const int64_t middle = tree_split(begin, end);
  return tree(leaves, begin, middle) + tree(leaves, middle, end);
}

TEST_CASE("TreeSum adds in the order of the binary tree, whatever the count") {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> draw(-1, 1);
  for (int64_t n = 1; n <= 33; ++n) {
    std::vector<float> leaves(static_cast<size_t>(n));
    for (float& leaf : leaves) leaf = draw(random);
    TreeSum sum;
    CHECK_FALSE(sum.take().defined());
    for (const float leaf : leaves) sum.add(full({3}, leaf));
    CHECK(sum.count() == n);
    CHECK(sum.take().select(0, 1).item<float>() == tree(leaves, 0, n));
    CHECK(sum.count() == 0);
  }
}
