#pragma once
// Collectives on a few numbers in a vector.
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

/// The elementwise sum of all ranks' vectors, or the reduction in `options`. Called by all ranks, with equal lengths.
template <class T>
std::vector<T> all_reduced(const std::vector<T>& mine, ProcessGroup& group, const CollectiveOptions& options) {
  const Tensor all = Tensor::from(mine, {int64_t(mine.size())});
  group.all_reduce(all, options);
  return all.to_vector<T>();
}

/// The concatenation of all ranks' vectors, by rank. Called by all ranks, with vectors of one length.
template <class T>
std::vector<T> all_gathered(const std::vector<T>& mine, ProcessGroup& group, const CollectiveOptions& options) {
  const Tensor own = Tensor::from(mine, {int64_t(mine.size())}),
               all = Tensor::from(std::vector<T>(mine.size() * size_t(group.size())), {own.numel() * group.size()});
  group.all_gather(all, own, options);
  return all.to_vector<T>();
}

}  // namespace lockstep::dist
