#pragma once
// For values that temporarily replace the values of leaves, such as an average of weights (optim::WeightAverage):
// buffers that belong to the replacing values, such as running statistics made with them (nn::update_bn).
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Pairs of a buffer and its other value. The buffer and the other value are swapped whenever the leaves' values are.
using OtherValues = std::vector<std::pair<Tensor, Tensor>>;
/// The list of buffers that belong to the values that replace this leaf's values, in this thread. Expired while the
/// leaf has its own values. The owner of the list must also hold the leaf, because the leaf's address is the key.
inline std::weak_ptr<OtherValues>& stand_in(const Variable& leaf) {
  thread_local std::map<const void*, std::weak_ptr<OtherValues>> all;
  return all[leaf.impl().get()];
}

}  // namespace lockstep
