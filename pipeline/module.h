#pragma once
// A model as a list of layers, of which a rank builds only its own.
//
//   std::vector<pipeline::LayerSpec> layers{pipeline::layer<nn::Embedding>({.num = 256, .dim = 64}).tie("table"), ...};
//
// A layer takes the tensors that the one before gives, of any dtype. Layers with the same tie are one module wherever
// they stand: its gradients are summed over all stages that have it, and it starts with the same values everywhere.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nn/layer_list.h"

namespace lockstep::pipeline {

using nn::Values;

/// A model whose layers are listed (layers_of()): a stage has some of its modules, no others.
struct WholeModel {
  std::shared_ptr<nn::Module> model;
  std::map<std::string, int> places = {};  ///< of its parameters in the order of named_parameters()
};

struct LayerSpec {
  using Make = std::function<std::unique_ptr<nn::Module>()>;
  using Forward = std::function<Values(nn::Module* module, const Values& inputs)>;

  std::string kind = {};    ///< for messages, and for a split by type
  Make make = {};           ///< empty: a function without parameters
  Forward forward = {};     ///< empty: module.call() on the one input
  int64_t parameters = -1;  ///< -1: is built once on every rank to count them, and dropped
  /// Before its parameters' names: "blocks.3"; "": nothing is; not given: its number (tied: "tied.KEY").
  std::optional<std::string> name = {};
  std::shared_ptr<const WholeModel> whole = {};  ///< where this layer is one of a model
  /// What it shares with others that say the same: one module; where it is one of a model, parameters by their names.
  std::vector<std::string> ties = {};

  LayerSpec& named(std::string text) {
    name = std::move(text);
    return *this;
  }
  LayerSpec& tie(std::string key) {
    ties = {std::move(key)};
    return *this;
  }
  LayerSpec& with(Forward fn) {
    forward = std::move(fn);
    return *this;
  }
};

/// A layer of type L, made from its options.
template <class L> LayerSpec layer(const typename L::Options& options) {
  return {.make = [options] { return std::make_unique<L>(options); }};
}
/// A layer without parameters.
LayerSpec layer(std::string kind, LayerSpec::Forward forward);
LayerSpec layer(std::string kind, std::function<Variable(const Variable&)> forward);

/// The layers of one rank. Parameters are called by LayerSpec::name, or the number of their layer in the whole model,
/// "3.weight"; tied ones by the first name, or "tied.KEY.weight": the names of all ranks together are those of the
/// whole model.
class StageModule : public nn::Module {
 public:
  struct Chunk {
    int begin = 0, end = 0;
  };  ///< layers
  /// Builds the layers of these chunks. A layer's start depends on the seed and its number (tied: of the first) only,
  /// not on the split.
  StageModule(const std::vector<LayerSpec>& layers, std::vector<Chunk> chunks, int checkpoint_interval);

  /// Runs a chunk. With a checkpoint interval, every so many layers keep only what goes in.
  Values forward(size_t chunk, const Values& inputs);
  struct Numbered {
    std::string name;
    Variable variable;
    int layer = 0, place = 0;  ///< the first layer that has it and its place there: an order that all ranks share
    std::string tie = {};      ///< empty: no other layer has it
    int user = 0;              ///< the first layer here that has it
  };
  std::vector<Numbered> numbered_parameters();
  /// Trained parameters of a chunk, without tied ones; and those of a tie.
  std::vector<nn::NamedParameter> own_parameters(size_t chunk);
  std::vector<nn::NamedParameter> tied_parameters(const std::string& key);

  void fields(nn::Fields& f) override;
  std::string kind() const override { return "StageModule"; }

  /// Those whose layers are in the list.
  std::set<const WholeModel*> models() const;

 private:
  void on_train(bool training) override {
    for (const WholeModel* one : models()) one->model->train(training);
  }
  std::string name_of(int layer) const;
  Values run(int layer, const Values& inputs);
  const std::vector<LayerSpec> specs_;
  const std::vector<Chunk> chunks_;
  const int interval_;
  std::map<int, std::unique_ptr<nn::Module>> layers_;  // by first_of()
};

/// The first layer that is the same module as layer i.
int first_of(const std::vector<LayerSpec>& layers, int i);
/// Makes layer i as every rank makes it.
std::unique_ptr<nn::Module> build(const std::vector<LayerSpec>& layers, int i);
/// Kinds and numbers of parameters; a tied layer's count at its first place.
std::vector<std::string> kinds_of(const std::vector<LayerSpec>& layers);
std::vector<double> parameters_of(const std::vector<LayerSpec>& layers);

}  // namespace lockstep::pipeline
