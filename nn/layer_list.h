#pragma once
// LayerList: a model as a list of layers, each with the fields it uses. Running the layers in order gives the same as
// forward(), and a pipeline may be cut between any two of them (pipeline/layers.h). Layers that list the same parameter
// share it (tied weights).
//
//   nn::LayerList layers() override {
//     nn::LayerList list;
//     list.add(tokens).add("Positions", {positions, dropout}, [this](const Variable& x) { return placed(x); });
//     for (auto& block : blocks.items) list.append(block->layers());
//     return list.add(norm).add(head);
//   }
#include "nn/module.h"

namespace lockstep::nn {

/// The values that one layer passes to the next.
using Values = std::vector<Variable>;

/// Layers in order, and the model's loss.
class LayerList {
 public:
  /// A module or a parameter of the model. Its name is looked up in the model.
  struct Field {
    Field(Module& m) : module(&m) {}            // NOLINT(google-explicit-constructor)
    Field(const Variable& p) : parameter(p) {}  // NOLINT(google-explicit-constructor)
    Module* module = nullptr;
    Variable parameter = {};
  };
  /// One layer.
  struct Item {
    std::string kind;  ///< name of the layer's type, for messages and for splitting by kind
    std::vector<Field> fields;
    std::function<Values(const Values&)> forward;  ///< input values to output values
    size_t takes = 1;                              ///< number of input values; 0: a sample's, or 1 in a later layer
    /// True: one of many equal blocks; activation checkpointing recomputes these blocks in backward. If no layer of the
    /// model is marked, it recomputes all.
    bool repeats = false;
  };

  LayerList& add(Module& module);  ///< a layer that runs module.call()
  /// Adds a layer with one input and one output.
  LayerList& add(std::string kind, std::vector<Field> fields, std::function<Variable(const Variable&)> forward);
  /// Adds a layer with any number of inputs and outputs.
  LayerList& add(Item item);
  /// Appends all layers of `more`.
  LayerList& append(LayerList more);
  /// Marks all layers as repeated blocks (Item::repeats).
  LayerList&& repeated() &&;
  bool any_repeats() const;  ///< true if a layer is marked so

  std::vector<Item> items;
  /// The model's own loss as a function of the last layer's output. Empty if the model has none: then the trainer
  /// supplies a loss.
  std::function<Variable(const Variable& output, const std::vector<Tensor>& targets)> loss;
  /// The model's own loss as a function of its input, for models that can compute the loss without holding their whole
  /// output in memory. Empty in other models. The result is undefined if the output has hooks, which must see it.
  std::function<Variable(const Variable& input, const std::vector<Tensor>& targets)> loss_of_input;
};

}  // namespace lockstep::nn
