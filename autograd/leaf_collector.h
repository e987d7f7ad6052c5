#pragma once
// Collects the variables that operations read, for activation checkpointing (autograd/record.cpp).
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Collects the variables requiring grad that operations read while recording is off. They come from outside, since no
/// result requires grad then. Activation checkpointing finds its parameters this way. While recording is on it collects
/// leaves only.
class LeafCollector {
 public:
  /// Starts collecting in this thread; an inner collector replaces an outer one.
  LeafCollector();
  ~LeafCollector();
  LeafCollector(const LeafCollector&) = delete;
  std::vector<Variable> leaves;  // each once, in order of first use; may contain non-leaves, see above

 private:
  LeafCollector* previous_;
};

}  // namespace lockstep
