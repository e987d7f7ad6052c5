#pragma once
// Costs of a model's layers, from which `lockstep plan` and `lockstep simulate` predict a step: measured times, and
// waits of tensor parallelism. Also converts a model's shape to JSON and back.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "data/json.h"
#include "engine/model_shape.h"
#include "nn/layer_list.h"

namespace lockstep::engine {

/// Seconds that a layer takes in forward and in backward.
struct LayerSeconds {
  double forward = 0, backward = 0;
};
/// Time that each of `ranks` tensor-parallel ranks waits for all-reduces of activations in a layer. own: the layer's
/// computing time. In forward, tokens are split into `chunks`: the all-reduce of one chunk overlaps with the matrix
/// product of the next chunk. In backward, an all-reduce overlaps with the product for the weight's gradient. sum(n):
/// the seconds that an all-reduce of 1/n of the tokens takes.
LayerSeconds waits_for_tensor_parallel(const ModelShape& model, const ModelShape::Layer& layer, int ranks,
                                       const LayerSeconds& own, int64_t chunks,
                                       const std::function<double(int64_t part)>& sum);

/// Experts that replace the MLP of every `every`-th block, as moe::add_experts() adds them.
struct ExpertShape {
  int64_t experts = 0, top_k = 1, every = 2;
};
/// The shape of the model that `make` builds. The model is built empty, without memory for its parameters.
ModelShape shape_of(const std::function<std::unique_ptr<nn::Module>()>& make, int64_t width, int64_t context,
                    int64_t vocab, const ExpertShape& experts = {});
/// The shape of a Model. Its options must contain width, context and vocab.
template <class Model> ModelShape shape_of(const typename Model::Options& o, const ExpertShape& experts = {}) {
  return shape_of([&] { return std::make_unique<Model>(o); }, o.width, o.context, o.vocab, experts);
}

/// Runs each layer of `list` forward and backward on the inputs of a micro-batch, a few times, and fills in FLOPs,
/// seconds and output sizes in shape.list. loss: computed from the last layer's output and counted as part of that
/// layer; may be null.
void measure(ModelShape& shape, nn::Module& model, const nn::LayerList& list, const nn::Values& inputs,
             const std::function<Variable(const Variable& output)>& loss);

/// The shape as JSON, to be stored in a file.
data::Json to_json(const ModelShape& shape);
/// The inverse of to_json(). Error if the JSON is not a model shape. origin: name of the JSON in the message.
ModelShape model_shape_from(const data::Json& json, const std::string& origin);

}  // namespace lockstep::engine
