#pragma once
// What a run over micro-batches puts back at its end.
#include "nn/module.h"
#include "tensor/random.h"

namespace lockstep::pipeline {

/// Random numbers of the program are where they were.
struct RandomScope {
  RandomScope() = default;
  ~RandomScope() { set_random_state(before); }
  RandomScope(const RandomScope&) = delete;
  const RandomState before = random_state();
};

/// A module in eval mode.
struct EvalMode {
  explicit EvalMode(nn::Module& m) : module(m), before(m.is_training()) { module.eval(); }
  ~EvalMode() { module.train(before); }
  EvalMode(const EvalMode&) = delete;
  nn::Module& module;
  const bool before;
};

}  // namespace lockstep::pipeline
