#pragma once
// The shapes of a model's parameters and its list of layers, against which plans are checked. The model may be built
// without memory for its values.
#include <cstdint>
#include <string>
#include <vector>

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
    /// The shard of this parameter that the first of `ranks` tensor-parallel ranks holds.
    Parameter sharded(int ranks) const;
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

/// The shape of a model whose layers pass on `width` elements per token, for samples of `context` tokens.
ModelShape shape_of(nn::Module& model, int64_t width, int64_t context, int64_t vocab);
}  // namespace lockstep::engine
