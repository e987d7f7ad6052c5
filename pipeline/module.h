#pragma once
// A model as a list of layers. Each rank builds only the layers of its own stage.
//
//   std::vector<pipeline::LayerSpec> layers{pipeline::layer<nn::Embedding>({.num = 256, .dim = 64}).tie("table"), ...};
//
// A layer takes the tensors that the previous layer returns, of any dtype. Layers with the same tie share one module,
// on whichever stages they are: the gradients of all these stages are summed, and all copies start with equal values.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pipeline/sample.h"

namespace lockstep::pipeline {

/// A description that is sent ahead of the data: shapes, dtypes, which tensors need a gradient, and how many random
/// calls the micro-batch has made so far (the next stage continues from there).
struct Shapes {
  /// The description of one tensor.
  struct One {
    DType dtype;
    Shape shape;
    bool wants_grad;
    bool on_device = false;
    friend bool operator==(const One&, const One&) = default;
  };
  std::vector<One> tensors;
  uint64_t random_call = 0;
  friend bool operator==(const Shapes&, const Shapes&) = default;

  static constexpr size_t max_tensors = 16;  ///< most tensors in a message
  /// Describes `values`. Error for more than max_tensors tensors.
  static Shapes of(const Values& values, uint64_t random_call);
  /// Text for error messages: "f32 [4, 8], f32 [4] without gradient after 3 random calls".
  std::string text() const;
};

/// A complete model that layers_of() divided into layers. Each stage trains some of its modules.
struct FullModel {
  std::shared_ptr<nn::Module> model;
  std::map<std::string, int> places = {};  ///< position of each parameter in named_parameters()
};

/// One layer of a pipeline: how to build its module, and how to run it.
struct LayerSpec {
  /// Builds the module of a layer.
  using Make = std::function<std::unique_ptr<nn::Module>()>;
  /// Runs a layer; `module` is what Make built, or null.
  using Forward = std::function<Values(nn::Module* module, const Values& inputs)>;

  std::string kind = {};    ///< shown in messages, and matched by a split by type
  Make make = {};           ///< builds the module; empty for a function without parameters
  Forward forward = {};     ///< computes the outputs; empty: module.call() on the only input
  int64_t parameters = -1;  ///< number of parameters; -1: every rank builds the layer once to count them, and drops it
  /// Prefix of the layer's parameter names, such as "blocks.3"; "" for none. Default: the layer's number or, for a
  /// layer with ties, "tied." and its first tie, such as "tied.table".
  std::optional<std::string> name = {};
  std::shared_ptr<const FullModel> full = {};  ///< the model that this layer was cut from, if any
  /// Layers with the same ties share one module. For a layer that layers_of() made from a model: names of the
  /// parameters that it shares with other layers.
  std::vector<std::string> ties = {};

  /// Sets the prefix of the parameters' names.
  LayerSpec& named(std::string text) {
    name = std::move(text);
    return *this;
  }
  /// Shares one module among all layers with this key.
  LayerSpec& tie(std::string key) {
    ties = {std::move(key)};
    return *this;
  }
  /// Replaces module.call() by `fn`, for layers with several inputs or outputs.
  LayerSpec& with(Forward fn) {
    forward = std::move(fn);
    return *this;
  }
};

/// A layer of type L, made from its options.
template <class L> LayerSpec layer(const typename L::Options& options) {
  return {.make = [options] { return std::make_unique<L>(options); }};
}
/// A layer of type L without options, such as layer<nn::ReLU>().
template <class L> LayerSpec layer() {
  return {.make = [] { return std::make_unique<L>(); }};
}
/// A layer without parameters: a function of all tensors that the previous layer returns, or of the only one.
LayerSpec layer(std::string kind, LayerSpec::Forward forward);
LayerSpec layer(std::string kind, std::function<Variable(const Variable&)> forward);

/// The layers of one rank. Parameter names begin with LayerSpec::name ("3.weight"); layers that share a module use the
/// name of the first of them. All ranks' names together are the whole model's names.
class StageModule : public nn::Module {
 public:
  /// The layers [begin, end) of one virtual stage.
  struct Chunk {
    int begin = 0, end = 0;
  };
  /// Builds the layers of these chunks. Initial values depend only on the seed and on the layer's number (for layers
  /// that share a module: on that of the first), not on the split. checkpoint_interval: see forward(). Error when two
  /// layers have the same name, or when a layer has neither a module nor a function.
  StageModule(const std::vector<LayerSpec>& layers, std::vector<Chunk> chunks, int checkpoint_interval);

  /// Runs a chunk. With a checkpoint interval of n > 0, every n successive layers store only the first one's input, and
  /// are recomputed in backward. An Error names the layer that failed.
  Values forward(size_t chunk, const Values& inputs);
  /// A parameter with its position in the whole model.
  struct Numbered : nn::NamedParameter {
    int layer = 0, place = 0;  ///< first layer that uses the parameter, and the index there; the same on all ranks
    std::string tie = {};      ///< key of the tie; empty when no other layer uses the parameter
    int user = 0;              ///< first layer of this rank that uses the parameter
  };
  /// All parameters of this rank, each once.
  std::vector<Numbered> numbered_parameters();
  /// Trainable parameters of a chunk that are not tied.
  std::vector<nn::NamedParameter> own_parameters(size_t chunk);
  /// Trainable parameters that belong to the tie `key`.
  std::vector<nn::NamedParameter> tied_parameters(const std::string& key);

  void fields(nn::Fields& f) override;
  std::string kind() const override { return "StageModule"; }

  /// The models that layers_of() divided into these layers; empty if no layer comes from layers_of().
  std::set<const FullModel*> models() const;

 private:
  /// train() also calls train() of the models from which layers_of() made the layers.
  void on_train(bool training) override {
    for (const FullModel* one : models()) one->model->train(training);
  }
  std::string name_of(int layer) const;
  Values run(int layer, const Values& inputs);
  Values run(Chunk layers, Values values);
  const std::vector<LayerSpec> specs_;
  const std::vector<Chunk> chunks_;
  const int interval_;
  std::map<int, std::unique_ptr<nn::Module>> layers_;  // by first_of()
};

/// Index of the first layer that shares its module with layer i; i itself if no earlier layer does.
int first_of(const std::vector<LayerSpec>& layers, int i);
/// Builds the module of layer i with the same initial values on every rank; nullptr if the layer is a function.
std::unique_ptr<nn::Module> build(const std::vector<LayerSpec>& layers, int i);
/// The kind of each layer. If a spec does not name the kind, builds the layer to find it out.
std::vector<std::string> kinds_of(const std::vector<LayerSpec>& layers);
/// Number of parameters of each layer. Those of a tied module count at the first of its layers only.
std::vector<double> parameters_of(const std::vector<LayerSpec>& layers);

}  // namespace lockstep::pipeline
