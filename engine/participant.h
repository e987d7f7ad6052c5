#pragma once
// A participant is an object of an extension that an engine calls at fixed places of each step. An engine makes its
// participants from the sections of the configuration file (section.h), the same ones on all ranks.
//
//   ready() ─▶ before_forward() ─▶ after(forward) ─▶ after(backward) ─▶ after_step() ─▶ report()
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "dist/process_group.h"
#include "nn/module.h"
#include "parallel/step.h"
#include "tensor/tensor.h"

namespace lockstep::engine {

/// The parts of an engine that its participants may use.
struct Trained {
  nn::Module& model;                            ///< this rank's part of the model
  dist::ProcessGroup &world, &group;            ///< all ranks, and those that sum gradients
  std::function<void(const std::string&)> say;  ///< prints at rank 0
};

/// The results of a step, as names and values: "train_loss", "lr", "loss_scale" and so on.
struct StepValues {
  std::vector<std::pair<std::string, double>> values;
  int64_t samples = 0;      ///< samples trained on so far
  double milliseconds = 0;  ///< duration of the update
};

/// A step of a Trainer, after its evaluation.
struct LoggedStep {
  const data::Json& line;                 ///< its line of metrics.jsonl; with `ended`: the results that are printed
  const std::string &folder, &evaluated;  ///< the run's folder, or ""; prefix of evaluated metrics, such as "val"
  const std::string& unit;                ///< unit of the speed, such as "tokens"
  double units = 0;                       ///< units in a step
  int64_t step = 0, steps = 0;            ///< steps done, and steps of the run
  bool ended = false;                     ///< true: the run's last call
};

/// Takes part in the steps of an engine, and has state in checkpoints.
class Participant {
 public:
  virtual ~Participant() = default;
  /// A line that the engine prints at its start; "": none.
  virtual std::string text() const { return ""; }
  /// Called when the engine is complete, before its first step.
  virtual void ready() {}

  /// Called before the forward of a micro-batch. step: number of complete steps; micro_batch: number in the step. If
  /// the model is cut by pp or tp, neither this function nor after() is called.
  virtual void before_forward([[maybe_unused]] int64_t step, [[maybe_unused]] int64_t micro_batch) {}
  /// Called after the forward or the backward of a micro-batch.
  virtual void after([[maybe_unused]] parallel::Do what, [[maybe_unused]] double milliseconds) {}
  /// Called after the update of each step, also of a step that was skipped. maximum: reduces the elements of a tensor
  /// to their maxima over all ranks that train this rank's part of the model, or shards of it. Collective.
  virtual void after_step([[maybe_unused]] const std::function<void(const Tensor&)>& maximum) {}
  /// Called at the end of each step. Returns text to print, or "".
  virtual std::string report([[maybe_unused]] const StepValues& step) { return ""; }
  /// Called by a Trainer on all ranks after each step, and at the end of the run.
  virtual void logged([[maybe_unused]] const LoggedStep& step) {}
  /// The reason why the coming step must not run as a graph, or "". ever: asks for a reason that holds for all steps.
  virtual std::string against_graphs([[maybe_unused]] bool ever) const { return ""; }

  /// The tensors that checkpoints hold, by name. Loading writes into them. They must be equal on all ranks that train
  /// the same part of the model. Names begin with Section::saved. Programs that load only the model skip tensors whose
  /// names begin with "optimizer.".
  virtual std::vector<std::pair<std::string, Tensor>> state() const { return {}; }
  /// The end of a warning about a checkpoint without such tensors: "was saved without noise; it starts anew".
  virtual std::string without_state() const { return ""; }
  /// Advice for an Error about a checkpoint with tensor `name` in another shape: "set noise.history to 3".
  virtual std::string other_shape([[maybe_unused]] const std::string& name, [[maybe_unused]] const Shape& saved) const {
    return "";
  }
  /// Called after state() was loaded.
  virtual void loaded() {}
};

}  // namespace lockstep::engine
