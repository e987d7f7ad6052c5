#pragma once
// Values that stand in for those of leaves for a while, as an average's do (optim::WeightAverage), and buffers of the
// model that are set for them meanwhile (nn::update_bn): these go when the values go.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Buffers, each with what it holds at the other time.
using OtherValues = std::vector<std::pair<Tensor, Tensor>>;
/// Of the values that stand in for this leaf's, for code of this thread; expired: it has its own. Whoever holds the
/// list holds the leaf, too.
inline std::weak_ptr<OtherValues>& stand_in(const Variable& leaf) {
  thread_local std::map<const void*, std::weak_ptr<OtherValues>> all;
  return all[leaf.impl().get()];
}

}  // namespace lockstep
