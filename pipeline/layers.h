#pragma once
// A model as pipelines take it: its own layers(), cut anywhere.
#include <memory>
#include <vector>

#include "nn/layer_list.h"
#include "pipeline/engine.h"

namespace lockstep::pipeline {

struct ModelLayers {
  std::vector<LayerSpec> layers;
  Loss loss;  ///< the model's own, with the own_loss() of its modules in training (which goes along from layer to
              ///< layer, as a last value); empty where it has none
};
/// Parameters keep the names that they have in `model`, which every rank has: an Engine empties those that its rank
/// does not train. recompute: layers that repeat keep only what goes in.
ModelLayers layers_of(const std::shared_ptr<nn::Module>& model, bool recompute = false);

}  // namespace lockstep::pipeline
