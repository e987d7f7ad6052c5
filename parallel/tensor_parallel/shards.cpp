// Cuts tensors into shards and joins shards. See shards.h.
#include "parallel/tensor_parallel/shards.h"

#include <numeric>

#include "dist/shard.h"
#include "tensor/ops.h"

namespace lockstep::tensor_parallel {
namespace {

std::vector<int64_t> blocks_of(const ShardLayout& cut) {
  const int64_t size = cut.full[normalize_dim("tensor_parallel", cut.dim, cut.full.rank())];
  if (cut.blocks.empty()) return {size};
  const int64_t sum = std::accumulate(cut.blocks.begin(), cut.blocks.end(), int64_t(0));
  LOCKSTEP_CHECK(sum == size, "[tensor_parallel] expected blocks that add up to ", size, ", got ", sum);
  return cut.blocks;
}

int64_t size_of_shard(const ShardLayout& cut, int world, int rank) {
  int64_t size = 0;
  for (const dist::Range& r : ranges(cut, world, rank)) size += r.size();
  return size;
}

}  // namespace

std::vector<dist::Range> ranges(const ShardLayout& cut, int world, int rank) {
  std::vector<dist::Range> all;
  int64_t start = 0;
  for (const int64_t size : blocks_of(cut)) {
    const dist::Range r = dist::shard_range(size, world, rank);
    all.push_back({start + r.begin, start + r.end});
    start += size;
  }
  return all;
}

Shape shard_shape(const ShardLayout& cut, int world, int rank) {
  Shape shape = cut.full;
  shape[normalize_dim("tensor_parallel", cut.dim, shape.rank())] = size_of_shard(cut, world, rank);
  return shape;
}

Tensor shard_of(const Tensor& full, const ShardLayout& cut, int world, int rank) {
  LOCKSTEP_CHECK(full.shape() == cut.full, "[tensor_parallel] expected a whole tensor of shape ", cut.full, ", got ",
                 full.shape(), "; pass the uncut tensor");
  std::vector<Tensor> parts;
  for (const dist::Range& r : ranges(cut, world, rank)) parts.push_back(full.narrow(cut.dim, r.begin, r.size()));
  return parts.size() == 1 ? parts[0].clone() : cat(parts, cut.dim);
}

Tensor joined(const Tensor& shard, const ShardLayout& cut, dist::ProcessGroup& group) {
  const int n = group.size(), d = normalize_dim("tensor_parallel", cut.dim, cut.full.rank());
  const Shape own = shard_shape(cut, n, group.rank());
  LOCKSTEP_CHECK(shard.shape() == own, "[tensor_parallel] expected a shard of shape ", own, " of ", cut.full, ", got ",
                 shard.shape(), "; cut the whole tensor with shard_of()");
  if (n == 1) return shard.clone();
  // All ranks must send the same amount. Rank 0 has the largest shard. Smaller shards are padded to that size.
  Shape each = shard_shape(cut, n, 0), all = each;
  Tensor mine = shard.contiguous();
  if (!(mine.shape() == each)) {
    mine = zeros(each, {shard.dtype(), shard.device()});
    mine.narrow(d, 0, shard.shape()[d]).copy_(shard);
  }
  all.insert(0, n);
  const Tensor parts = empty(all, {shard.dtype(), shard.device()}),
               full = empty(cut.full, {shard.dtype(), shard.device()});
  group.all_gather(parts, mine, {.tag = "slices"});
  for (int rank = 0; rank < n; ++rank) {
    int64_t at = 0;
    for (const dist::Range& r : ranges(cut, n, rank)) {
      full.narrow(d, r.begin, r.size()).copy_(parts.select(0, rank).narrow(d, at, r.size()));
      at += r.size();
    }
  }
  return full;
}

}  // namespace lockstep::tensor_parallel
