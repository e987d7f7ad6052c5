#pragma once
// Divides a model into the layers that its layers() function lists. A pipeline distributes these layers over stages.
#include <memory>
#include <vector>

#include "nn/layer_list.h"
#include "pipeline/engine.h"

namespace lockstep::pipeline {

/// The result of layers_of().
struct ModelLayers {
  std::vector<LayerSpec> layers;
  /// The model's own loss. In training it includes the own_loss() of the model's modules: each layer returns, besides
  /// its outputs, the sum of these losses so far, and the next layer adds its own. Empty if the model has no loss.
  Loss loss;
};
/// Divides `model`, which every rank holds, into layers. Parameters keep their names. A PipelineEngine frees the
/// parameters that its rank does not train. recompute: repeated layers store only their input and run again in
/// backward. Error when layers() leaves out a parameter, or uses a module that fields() does not name.
ModelLayers layers_of(const std::shared_ptr<nn::Module>& model, bool recompute = false);

}  // namespace lockstep::pipeline
