// How parameters are laid out in units, which rank owns what, and the memory formulas of the ZeRO paper.
#include "zero/partition.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace lockstep::zero {
namespace {

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/// Places the parameters of a unit into shards of this length. Returns false if they do not fit.
bool try_place(Layout& layout, int64_t shard) {
  layout.shard = shard;
  layout.offsets.clear();
  int64_t end = 0;
  for (const int64_t n : layout.sizes) {
    int64_t start = round_up(end, alignment);
    const int64_t cut = (start / shard + 1) * shard;  // the first cut after its start
    if (start + n > cut) {
      // The parameter does not fit before the end of this shard (cut). Move its start so that the cut falls between
      // two of its norm blocks, or before its first element.
      start = cut - (cut - start) / norm_block * norm_block;
      if (start + n > cut + shard && shard % norm_block != 0) return false;  // later cuts would miss block boundaries
    }
    layout.offsets.push_back(start);
    end = start + n;
  }
  return end <= layout.world * shard;
}

Layout of(std::vector<int64_t> sizes, int world, int owner) {
  LOCKSTEP_CHECK(world >= 1 && owner < world,
                 "[partition] expected 1 rank or more, and an owner below their number, got ", world,
                 " ranks and owner ", owner);
  for (const int64_t n : sizes) LOCKSTEP_CHECK(n >= 0, "[partition] expected sizes >= 0, got ", n);
  Layout layout;
  layout.world = world;
  layout.owner = owner;
  layout.sizes = std::move(sizes);
  return layout;
}

}  // namespace

int64_t Layout::numel() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t(0)); }

dist::Range Layout::range(int rank) const {
  if (owner < 0) return dist::shard_range(full(), world, rank);
  return rank == owner ? dist::Range{0, shard} : dist::Range{0, 0};
}

dist::Range Layout::owned(size_t i, int rank) const {
  const dist::Range mine = range(rank);
  const int64_t begin = std::clamp(mine.begin - offsets[i], int64_t(0), sizes[i]),
                end = std::clamp(mine.end - offsets[i], int64_t(0), sizes[i]);
  return begin < end ? dist::Range{begin, end} : dist::Range{0, 0};
}

Layout lay_out(std::vector<int64_t> sizes, int world) {
  Layout layout = of(std::move(sizes), world, -1);
  const int64_t total = layout.numel();
  layout.offsets.assign(layout.sizes.size(), 0);
  if (total == 0) return layout;
  // Find the shortest shards into which everything fits. A multiple of norm_block always fits in the end.
  for (int64_t shard = round_up((total + world - 1) / world, alignment); !try_place(layout, shard);) shard += alignment;
  return layout;
}

Layout lay_out_at(std::vector<int64_t> sizes, int world, int owner) {
  LOCKSTEP_CHECK(owner >= 0, "[partition] expected a rank as the owner, got ", owner);
  Layout layout = of(std::move(sizes), world, owner);
  for (const int64_t n : layout.sizes) {
    layout.offsets.push_back(round_up(layout.shard, alignment));
    layout.shard = layout.offsets.back() + n;
  }
  return layout;
}

std::vector<int> assign_owners(const std::vector<int64_t>& sizes, int world) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int64_t> load(size_t(world), 0);
  std::vector<int> owners(sizes.size());
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[i] = int(least - load.begin());
    *least += sizes[i];
  }
  return owners;
}

ModelState model_state(int stage, double psi, int world, double bytes, double k) {
  const auto over = [&](int from) { return stage >= from ? 1. / world : 1.; };
  return {.parameters = bytes * psi * over(3), .gradients = bytes * psi * over(2), .optimizer = k * psi * over(1)};
}

}  // namespace lockstep::zero
