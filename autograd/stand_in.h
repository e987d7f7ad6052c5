#pragma once
// Other values may temporarily replace those of leaves: optim::WeightAverage puts averaged weights in place. Buffers,
// such as the running statistics of batch norm, must then be replaced too. stand_in() lists the buffers.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Pairs of a buffer and its other value. When the values of the leaves are replaced or restored, each pair is swapped.
using OtherValues = std::vector<std::pair<Tensor, Tensor>>;
/// The list of buffers that must be swapped together with this leaf's value, in this thread. Expired while the leaf has
/// its own value. The owner of the list must also hold the leaf, because the leaf's address is the key.
inline std::weak_ptr<OtherValues>& stand_in(const Variable& leaf) {
  thread_local std::map<const void*, std::weak_ptr<OtherValues>> all;
  return all[leaf.impl().get()];
}

}  // namespace lockstep
