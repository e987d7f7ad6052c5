#pragma once
// The data of a micro-batch, from loading to forward. Internal to engine/.
#include <cstdint>
#include <vector>

#include "pipeline/engine.h"

namespace lockstep::engine {

/// The tensors of a sample: inputs, then targets.
template <class Sample> auto tensors_of(Sample& sample) {
  std::vector<decltype(&sample.inputs[0])> all;
  for (auto& x : sample.inputs) all.push_back(&x);
  for (auto& x : sample.targets) all.push_back(&x);
  return all;
}

/// One micro-batch of train_batch().
struct MicroBatch {
  pipeline::Sample sample = {};
  int64_t number = 0;   // number in the step
  uint64_t calls = 0;   // calls of the random generator while its data were loaded
  int64_t tokens = -1;  // tokens that the loss is a sum over; -1: the loss is a mean

  /// Copies each tensor whose memory is shared, because drawing the next micro-batch may overwrite it. Returns false if
  /// such a tensor is not contiguous, since a copy would have other strides.
  bool keep() {
    for (Tensor* x : tensors_of(sample)) {
      if (!x->defined() || x->is_exclusive()) continue;
      if (!x->is_contiguous()) return false;
      *x = x->clone();
    }
    return true;
  }
};

}  // namespace lockstep::engine
