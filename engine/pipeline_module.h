#pragma once
// A model for the engine: a list of layers, or a model with its own loss, split into stages and schedule.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "pipeline/module.h"
#include "pipeline/schedule.h"

namespace lockstep::engine {

/// A model or a list of layers, and how it is distributed over pipeline stages.
struct PipelineModule {
  /// A model, whose layers() are divided among the stages. Without loss_fn, the loss that layers() returns is used.
  std::shared_ptr<nn::Module> model = {};
  std::vector<pipeline::LayerSpec> layers = {};  ///< list of layers, given instead of a model
  /// Computes the mean loss of a micro-batch from its outputs and targets.
  pipeline::Loss loss_fn = {};
  int num_stages = 0;                 ///< number of pipeline stages; 0: pipeline.stages of the config
  std::string partition_method = {};  ///< how layers are divided into stages; empty: pipeline.partition of the config
  /// Number of layers between activation checkpoints. Default: pipeline.activation_checkpoint_interval of the config.
  std::optional<int> activation_checkpoint_interval = {};
  /// Index of the first layer of each (virtual) stage, then the number of all layers. Overrides partition_method.
  std::vector<int> bounds = {};
  std::optional<pipeline::PipelineSchedule> schedule = {};  ///< a schedule of your own; overrides pipeline.schedule
  std::optional<DType> autocast = {};                       ///< f16 or bf16: forwards and losses run under Autocast
  /// True: pipeline stages use activation checkpointing. A repeated layer of `model` then stores only its input, and
  /// runs forward again in backward.
  bool recompute = false;
  /// Replaces the model's own forward, by DataParallel for example. Not with pipeline stages or tensor parallelism.
  std::function<Variable(const Tensor& input)> forward = {};
  /// Counts the targets over which the loss of a micro-batch is a mean. Loss and gradient of a step are then means over
  /// all targets of all micro-batches. Not with pipeline stages or tensor parallelism.
  std::function<int64_t(const std::vector<Tensor>& targets)> tokens = {};
};

/// Builds an engine for a list of layers, or for a model in a shared_ptr, which engine and caller own together.
inline EngineBase initialize(PipelineModule module, InitializeArgs args) {
  return EngineBase(std::move(module), std::move(args));
}

}  // namespace lockstep::engine
