#pragma once
// A few numbers from rank to rank.
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

/// Those of all ranks one by one: their sum, or what `options` says. Called by all ranks.
template <class T>
std::vector<T> all_reduced(const std::vector<T>& mine, ProcessGroup& group, const CollectiveOptions& options) {
  const Tensor all = Tensor::from(mine, {int64_t(mine.size())});
  group.all_reduce(all, options);
  return all.to_vector<T>();
}

/// Those of all ranks behind one another, as many of each. Called by all ranks.
template <class T>
std::vector<T> all_gathered(const std::vector<T>& mine, ProcessGroup& group, const CollectiveOptions& options) {
  const Tensor own = Tensor::from(mine, {int64_t(mine.size())}),
               all = Tensor::from(std::vector<T>(mine.size() * size_t(group.size())), {own.numel() * group.size()});
  group.all_gather(all, own, options);
  return all.to_vector<T>();
}

}  // namespace lockstep::dist
