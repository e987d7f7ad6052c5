#pragma once
// Collects the variables that operations read, for activation checkpointing (autograd/record.cpp).
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Collects the variables that operations read and that require grad. While recording is off, no new result requires
/// grad: all collected variables were made earlier. While recording is on, only leaves are collected. Activation
/// checkpointing finds the parameters of a function this way.
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
