// Each rank's share of a collective on tensors that all ranks reach, in blocks that stay in the cache.
#include "dist/in_place.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "dist/shard.h"

namespace lockstep::dist {
namespace {

constexpr int64_t block_bytes = 16 << 10;  // of one tensor: those of a few ranks fit into the second cache

/// Adds up what terms point to, in the order in which the owner, terms[0], adds in `direct`: terms[s] is that of the rank
/// `owner xor s`, null where there is none. The sum is in terms[0] at the end; other terms are left alone when `scratch` is
/// given, memory for as many terms.
void sum(const InPlace& call, std::vector<std::byte*>& terms, std::byte* scratch, int64_t bytes) {
  const int64_t count = bytes / size_of(call.dtype);
  for (size_t step = 1; step < terms.size(); step *= 2) {
    for (size_t s = 0; s + step < terms.size(); s += 2 * step) {
      std::byte *&left = terms[s], *right = terms[s + step];
      if (!right) continue;
      if (!left) { left = right; continue; }
      if (s > 0 && scratch && left != scratch + s * size_t(block_bytes)) {
        std::memcpy(scratch + s * size_t(block_bytes), left, size_t(bytes));
        left = scratch + s * size_t(block_bytes);
      }
      reduce_into(call.dtype, call.op, left, right, count);
    }
  }
  if (call.op == ReduceOp::mean) divide(call.dtype, terms[0], count, call.ranks);
}

void reduce(const InPlace& call, std::span<std::byte* const> wholes) {
  const bool everywhere = call.collective == Collective::all_reduce;  // the sum goes into every tensor, which may so hold parts of it before
  const int64_t size = size_of(call.dtype);
  const Range own = shard_range(call.count, call.ranks, call.rank);
  std::vector<std::byte*> terms(std::bit_ceil(unsigned(call.ranks)));
  std::vector<std::byte> scratch(everywhere || call.ranks == 2 ? 0 : terms.size() * size_t(block_bytes));
  for (int64_t at = own.begin * size; at < own.end * size; at += block_bytes) {
    const int64_t bytes = std::min(block_bytes, own.end * size - at);
    for (size_t s = 0; s < terms.size(); ++s) {
      const size_t peer = size_t(call.rank) ^ s;
      terms[s] = peer < wholes.size() ? wholes[peer] + at : nullptr;
    }
    if (!everywhere) terms[0] = call.part + (at - own.begin * size);
    sum(call, terms, scratch.empty() ? nullptr : scratch.data(), bytes);
    if (!everywhere) continue;
    for (int r = 0; r < call.ranks; ++r) if (r != call.rank) std::memcpy(wholes[size_t(r)] + at, wholes[size_t(call.rank)] + at, size_t(bytes));
  }
}

}  // namespace

bool can_work_in_place(Collective c, Algorithm algorithm) {
  return algorithm == Algorithm::direct && (c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather || c == Collective::broadcast);
}

void work_in_place(const InPlace& call, std::span<std::byte* const> wholes) {
  const auto fetch = [&](int from, Range range) {
    const int64_t size = size_of(call.dtype), at = range.begin * size;
    if (range.size() > 0) std::memcpy(call.whole + at, wholes[size_t(from)] + at, size_t(range.size() * size));
  };
  switch (call.collective) {
    case Collective::broadcast:
      if (call.rank != call.root) fetch(call.root, {0, call.count});
      return;
    case Collective::all_gather:  // from the next rank on, so that not all read from the same one
      for (int s = 1; s < call.ranks; ++s) {
        const int from = (call.rank + s) % call.ranks;
        fetch(from, shard_range(call.count, call.ranks, from));
      }
      return;
    default: return reduce(call, wholes);
  }
}

}  // namespace lockstep::dist
