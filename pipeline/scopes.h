#pragma once
// What a run over micro-batches puts back at its end, or adds up.
#include "nn/module.h"
#include "tensor/clock.h"
#include "tensor/random_scope.h"

namespace lockstep::pipeline {

/// A module in eval mode.
struct EvalMode {
  explicit EvalMode(nn::Module& m) : module(m), before(m.is_training()) { module.eval(); }
  ~EvalMode() { module.train(before); }
  EvalMode(const EvalMode&) = delete;
  nn::Module& module;
  const bool before;
};

/// Adds the seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& to) : to_(to) {}
  ~Stopwatch() { to_ += steady_seconds() - start_; }
  Stopwatch(const Stopwatch&) = delete;

 private:
  double& to_;
  const double start_ = steady_seconds();
};

}  // namespace lockstep::pipeline
