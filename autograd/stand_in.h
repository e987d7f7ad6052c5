#pragma once
// optim::WeightAverage replaces a model's weights by their averages for a time. Buffers, such as the running statistics
// of batch norm, have two values too: one for the weights, one for the averages. stand_in() lists these buffers.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Pairs of a buffer and the value that it has while other weights stand in for the model's own. The two values are
/// swapped when the weights are replaced, and again when they are restored.
using OtherValues = std::vector<std::pair<Tensor, Tensor>>;
/// The buffers to swap when the value of `leaf` (a weight) is restored. The result is an expired pointer unless this
/// thread has replaced the value. The owner of the list must hold the leaf too, because the leaf's address is the key.
inline std::weak_ptr<OtherValues>& stand_in(const Variable& leaf) {
  thread_local std::map<const void*, std::weak_ptr<OtherValues>> all;
  return all[leaf.impl().get()];
}

}  // namespace lockstep
