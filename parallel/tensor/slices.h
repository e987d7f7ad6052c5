#pragma once
// How a tensor is cut over the ranks: along one dim, which may hold several blocks that are cut each for itself, by
// dist::shard_range().
//
//   a packed projection, 2 ranks                 rank 0        rank 1
//   q q q q │ k k k k │ v v v v                  q q k k v v   q q k k v v        blocks {4, 4, 4}
#include <vector>

#include "dist/process_group.h"
#include "tensor/tensor.h"

namespace lockstep::tensor_parallel {

struct Cut {
  Shape whole;
  int64_t dim = 0;
  std::vector<int64_t> blocks = {};  ///< sizes that add up to whole[dim]; empty: one block
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// Where this rank's elements along the dim come from in the whole, in their order.
std::vector<dist::Range> ranges(const Cut& cut, int world, int rank);
Shape slice_shape(const Cut& cut, int world, int rank);
/// This rank's slice, a copy.
Tensor slice_of(const Tensor& whole, const Cut& cut, int world, int rank);
/// The whole tensor from everybody's slices, on all ranks. Called by all.
Tensor joined(const Tensor& slice, const Cut& cut, dist::ProcessGroup& group);

}  // namespace lockstep::tensor_parallel
