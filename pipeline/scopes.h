#pragma once
// What a run over micro-batches puts back at its end, or adds up.
#include <chrono>

#include "nn/module.h"
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
  ~Stopwatch() { to_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;

 private:
  double& to_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep::pipeline
