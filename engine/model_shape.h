#pragma once
// A model by the shapes of its parameters and by its layers: what `lockstep plan` and `lockstep simulate` count with.
// Asked of the model itself, which may be built empty; one that has values may also be measured.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/json.h"
#include "nn/layer_list.h"
#include "nn/module.h"

namespace lockstep::engine {

/// Parameters are in the order of named_parameters(). A "token" is what samples consist of and are counted in: where a
/// model has none, the sample itself (context 1).
struct ModelShape {
  struct Parameter {
    std::string name;
    Shape shape;
    int64_t expert = -1;               ///< which one it is of
    int64_t dim = -1;                  ///< along which tensor parallelism cuts it; -1: it stays whole
    std::vector<int64_t> blocks = {};  ///< of that dim, cut each for itself
    bool is_table = false;             ///< of tokens
    bool trains = true;                ///< false: frozen
    int64_t numel() const { return numel_of(shape); }
    /// What the first of so many tensor-parallel ranks has of it.
    Parameter sliced(int ranks) const;
  };
  /// Of nn::Module::layers().
  struct Layer {
    std::string kind;
    std::vector<int64_t> parameters, multiplied;  ///< of the model: that it uses, and those with which it multiplies
    double beside = 0;                            ///< FLOPs of a token beside those products
    int64_t reduces = 0,
            reduces_back = 0;  ///< all-reduces of activations with tensor parallelism, forward and backward
    bool repeats = false, has_experts = false;
    double out = 0;                    ///< elements of a token that it hands on
    double measured = -1;              ///< FLOPs of a token's forward, counted in one; -1: parameters and `beside` say
    double forward = 0, backward = 0;  ///< seconds of a sample; 0: not measured
  };
  std::string name, unit = "tokens";
  std::vector<Parameter> parameters;
  std::vector<Layer> list;
  int64_t layers = 0;  ///< of the list, that look at other tokens
  int64_t heads = 0;   ///< the fewest that must stay together; 0: none
  int64_t width = 0;   ///< the most that a layer hands on of a token
  int64_t context = 1, vocab = 0;
  int64_t experts = 0, top_k = 0;  ///< of a layer that has them
  int64_t numel() const;
  /// What tensor-parallel ranks must divide beside heads, in all layers at once; 0: nothing.
  int64_t columns() const;
  int64_t trained() const;  ///< elements of what is not frozen
  /// FLOPs of one token's forward in a layer, at one of so many tensor-parallel ranks.
  double flops(const Layer& layer, int ranks = 1) const;
  double forward_flops() const;
};

/// Seconds of a layer's forward and backward.
struct LayerSeconds {
  double forward = 0, backward = 0;
};
/// What each of `ranks` tensor-parallel ranks waits for sums of activations in a layer whose own part takes `own`: a
/// forward's go on beside the product of the next chunk of rows, a backward's beside the weight's gradient
/// (parallel/tensor/overlap.h). sum(n): seconds of the sum of an n-th of the rows.
LayerSeconds waits_for_slices(const ModelShape& model, const ModelShape::Layer& layer, int ranks,
                              const LayerSeconds& own, int64_t chunks, const std::function<double(int64_t part)>& sum);

/// Of a model whose layers hand on `width` elements of each token, for samples of `context` tokens.
ModelShape shape_of(nn::Module& model, int64_t width, int64_t context, int64_t vocab);
/// Experts in place of the MLP of the last of every so many blocks, as moe::add_experts() puts them.
struct ExpertShape {
  int64_t experts = 0, top_k = 1, every = 2;
};
/// Of what `make` makes, built empty.
ModelShape shape_of(const std::function<std::unique_ptr<nn::Module>()>& make, int64_t width, int64_t context,
                    int64_t vocab, const ExpertShape& experts = {});
/// Of a model whose options say these.
template <class Model> ModelShape shape_of(const typename Model::Options& o, const ExpertShape& experts = {}) {
  return shape_of([&] { return std::make_unique<Model>(o); }, o.width, o.context, o.vocab, experts);
}

/// Runs each layer of `shape.list` (as `list` has it) on this micro-batch, forward and backward, a few times: fills in
/// FLOPs, seconds and what is handed on. loss: of the last layer's output, part of that layer; may be null.
void measure(ModelShape& shape, nn::Module& model, const nn::LayerList& list, const Tensor& input,
             const std::function<Variable(const Variable& output)>& loss);

data::Json to_json(const ModelShape& shape);
/// Error that names `origin` when it is none.
ModelShape model_shape_from(const data::Json& json, const std::string& origin);

}  // namespace lockstep::engine
