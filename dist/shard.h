#pragma once
// The rule that cuts a list of n elements into parts: for chunks of collectives, gradient buckets and ZeRO shards.
#include <algorithm>
#include <cstdint>

namespace lockstep::dist {

/// A half-open range of indices.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }  ///< number of indices
  friend bool operator==(const Range&, const Range&) = default;
};

/// Part `rank` of `n` elements cut into `world` contiguous parts; the first n % world parts have one more element.
inline Range shard_range(int64_t n, int64_t world, int64_t rank) {
  const int64_t base = n / world, more = n % world;
  const int64_t begin = rank * base + std::min(rank, more);
  return {begin, begin + base + (rank < more ? 1 : 0)};
}

}  // namespace lockstep::dist
