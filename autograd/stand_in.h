#pragma once
// Values that stand in for those of leaves for a while, as an average's do (optim::WeightAverage), and buffers of the
// model that are set for them meanwhile (nn::update_bn): these go when the values go.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Buffers, each with the value that it takes when the leaves' own values change places with the others.
using OtherValues = std::vector<std::pair<Tensor, Tensor>>;
/// The list that belongs to the values which stand in for this leaf's, as this thread sees it. It has expired where the
/// leaf has its own values. Whoever holds the list also holds the leaf.
inline std::weak_ptr<OtherValues>& stand_in(const Variable& leaf) {
  thread_local std::map<const void*, std::weak_ptr<OtherValues>> all;
  return all[leaf.impl().get()];
}

}  // namespace lockstep
