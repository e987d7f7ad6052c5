#pragma once
// What activation checkpointing asks of recording (autograd/record.cpp).
#include <vector>

#include "autograd/variable.h"

namespace lockstep {

/// Notes the variables wanting a gradient that operations read while recording is off: they come from outside, since
/// nothing made inside wants one. Activation checkpointing finds its parameters with it. (While recording is on, leaves
/// only.)
class LeafCollector {
 public:
  LeafCollector();
  ~LeafCollector();
  LeafCollector(const LeafCollector&) = delete;
  std::vector<Variable> leaves;  // each once, in order of first use; not leaves alone, see above

 private:
  LeafCollector* previous_;
};

}  // namespace lockstep
