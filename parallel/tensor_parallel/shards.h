#pragma once
// Shards a tensor over the ranks along one dim, by dist::shard_range(). The dim may consist of several blocks, each of
// which is sharded by itself. Example, the packed projection of attention on 2 ranks:
//
//   whole weight                                 rank 0          rank 1
//   q q q q │ k k k k │ v v v v                  q q k k v v     q q k k v v          blocks {4, 4, 4}
#include <vector>

#include "dist/process_group.h"
#include "dist/shard.h"
#include "tensor/tensor.h"

namespace lockstep::tensor_parallel {

/// Describes how one tensor is sharded over the ranks.
struct ShardLayout {
  Shape full;                        ///< shape of the whole tensor
  int64_t dim = 0;                   ///< the dim that is cut
  std::vector<int64_t> blocks = {};  ///< sizes that add up to full[dim]; empty: one block
  friend bool operator==(const ShardLayout&, const ShardLayout&) = default;
};

/// The ranges of `dim` in the whole tensor that make up a rank's shard, in order: one range of each block of `cut`.
std::vector<dist::Range> ranges(const ShardLayout& cut, int world, int rank);
/// Shape of a rank's shard.
Shape shard_shape(const ShardLayout& cut, int world, int rank);
/// A copy of a rank's shard. Error unless `full` has the shape cut.full.
Tensor shard_of(const Tensor& full, const ShardLayout& cut, int world, int rank);
/// Joins the ranks' shards to the whole tensor, on all ranks. Collective.
Tensor joined(const Tensor& shard, const ShardLayout& cut, dist::ProcessGroup& group);

}  // namespace lockstep::tensor_parallel
