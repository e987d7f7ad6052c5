#pragma once
// Collects the variables that operations read, for activation checkpointing (autograd/record.cpp).
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// While a LeafCollector lives, it collects the variables that operations read and that require grad. Activation
/// checkpointing finds the parameters of a function this way. While recording is on, it collects leaves only. While
/// recording is off, it also collects results of earlier operations that were recorded. (A result computed while
/// recording is off does not require grad.)
class LeafCollector {
 public:
  /// Starts collecting in this thread. Until this collector is destroyed, outer ones collect nothing.
  LeafCollector();
  ~LeafCollector();
  LeafCollector(const LeafCollector&) = delete;
  std::vector<Variable> leaves;  // each once, in order of first use; may contain non-leaves, see above

 private:
  LeafCollector* previous_;
};

}  // namespace lockstep
