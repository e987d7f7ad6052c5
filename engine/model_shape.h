#pragma once
// The shapes of a model's parameters and its list of layers, from which `lockstep plan` and `lockstep simulate` compute
// costs. The model may be built without memory for its values. If it has values, measure() can time its layers.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/json.h"
#include "nn/layer_list.h"
#include "nn/module.h"

namespace lockstep::engine {

/// The shape of a model, with parameters in the order of named_parameters(). In a model without tokens, each sample
/// counts as one token, and the context is 1.
struct ModelShape {
  /// One parameter.
  struct Parameter {
    std::string name;
    Shape shape;
    int64_t expert = -1;                               ///< number of the expert that it belongs to; -1: none
    int64_t dim = -1;                                  ///< dim that tensor parallelism cuts; -1: not cut
    std::vector<int64_t> blocks = {};                  ///< sizes of blocks along dim that are cut separately
    bool is_table = false;                             ///< true for token embeddings and output heads
    bool trains = true;                                ///< true: trained; false: frozen
    int64_t numel() const { return numel_of(shape); }  ///< elements of the whole parameter
    /// The slice of this parameter that the first of `ranks` tensor-parallel ranks holds.
    Parameter sliced(int ranks) const;
  };
  /// One layer of nn::Module::layers().
  struct Layer {
    std::string kind;
    /// parameters: indices of the parameters that the layer uses. multiplied: those of them that matrix products use.
    std::vector<int64_t> parameters, multiplied;
    double beside = 0;  ///< FLOPs per token besides the products with `multiplied`
    /// Numbers of all-reduces of activations with tensor parallelism. reduces: in forward. reduces_back: in backward.
    int64_t reduces = 0, reduces_back = 0;
    bool repeats = false, has_experts = false;
    double out = 0;        ///< elements per token of the layer's output
    double measured = -1;  ///< FLOPs of a token's forward, if counted; -1: computed from parameters and `beside`
    double forward = 0, backward = 0;  ///< seconds per sample; 0: not measured
  };
  std::string name, unit = "tokens";
  std::vector<Parameter> parameters;
  std::vector<Layer> list;
  int64_t layers = 0;  ///< number of layers in `list` that mix tokens (attention)
  /// Smallest number of (key/value) heads in any attention layer; 0: the model has no attention. The number of
  /// tensor-parallel ranks must divide it.
  int64_t heads = 0;
  int64_t width = 0;  ///< largest number of elements per token between layers
  int64_t context = 1, vocab = 0;
  int64_t experts = 0, top_k = 0;  ///< experts of an MoE layer, and number of experts for each token
  /// Elements of all parameters.
  int64_t numel() const;
  /// Greatest common divisor of all sizes that tensor parallelism divides among ranks, except those of token
  /// embeddings and output heads. Returns 0 if tensor parallelism divides no sizes.
  int64_t columns() const;
  int64_t trained() const;  ///< elements of parameters that are not frozen
  /// FLOPs of one token's forward in a layer, on one of `ranks` tensor-parallel ranks.
  double flops(const Layer& layer, int ranks = 1) const;
  /// FLOPs of one token's forward in the whole model.
  double forward_flops() const;
};

/// Seconds that a layer takes in forward and in backward.
struct LayerSeconds {
  double forward = 0, backward = 0;
};
/// Time that each of `ranks` tensor-parallel ranks waits for all-reduces of activations in a layer. own: the layer's
/// computing time. In forward, tokens are split into `chunks`: the all-reduce of one chunk overlaps with the matrix
/// product of the next chunk. In backward, an all-reduce overlaps with the product for the weight's gradient. sum(n):
/// the seconds that an all-reduce of 1/n of the tokens takes.
LayerSeconds waits_for_slices(const ModelShape& model, const ModelShape::Layer& layer, int ranks,
                              const LayerSeconds& own, int64_t chunks, const std::function<double(int64_t part)>& sum);

/// The shape of a model whose layers pass on `width` elements per token, for samples of `context` tokens.
ModelShape shape_of(nn::Module& model, int64_t width, int64_t context, int64_t vocab);
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

/// Runs each layer of `list` forward and backward on a micro-batch, a few times, and fills in FLOPs, seconds and output
/// sizes in shape.list. loss: computed from the last layer's output and counted as part of that layer; may be null.
void measure(ModelShape& shape, nn::Module& model, const nn::LayerList& list, const Tensor& input,
             const std::function<Variable(const Variable& output)>& loss);

/// The shape as JSON, to be stored in a file.
data::Json to_json(const ModelShape& shape);
/// The inverse of to_json(). Error if the JSON is not a model shape. origin: name of the JSON in the message.
ModelShape model_shape_from(const data::Json& json, const std::string& origin);

}  // namespace lockstep::engine
