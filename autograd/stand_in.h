#pragma once
// Values that temporarily replace the values of leaves, such as an average of weights (optim::WeightAverage), and
// buffers of the model that belong to them (nn::update_bn). The buffers are dropped with the values.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Pairs of a buffer and its other value. The two are swapped whenever the leaves' values are.
using OtherValues = std::vector<std::pair<Tensor, Tensor>>;
/// The buffers that belong to the values replacing this leaf's, in this thread. Expired while the leaf has its own
/// values. Whoever holds the list also holds the leaf.
inline std::weak_ptr<OtherValues>& stand_in(const Variable& leaf) {
  thread_local std::map<const void*, std::weak_ptr<OtherValues>> all;
  return all[leaf.impl().get()];
}

}  // namespace lockstep
