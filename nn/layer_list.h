#pragma once
// A model as a list: what runs one after another, and which of its fields each layer uses. Run in order it gives what
// forward() gives, and pipelines cut it anywhere (pipeline/layers.h). Layers that use the same parameter are tied by
// that; nothing else needs to say so.
//
//   nn::LayerList layers() override {
//     nn::LayerList list;
//     list.add(tokens).add("Positions", {positions, dropout}, [this](const Variable& x) { return placed(x); });
//     for (auto& block : blocks.items) list.append(block->layers());
//     return list.add(norm).add(head);
//   }
#include "nn/module.h"

namespace lockstep::nn {

using Values = std::vector<Variable>;

class LayerList {
 public:
  /// A module or a parameter of the model; what it is called there is found out.
  struct Field {
    Field(Module& m) : module(&m) {}            // NOLINT(google-explicit-constructor)
    Field(const Variable& p) : parameter(p) {}  // NOLINT(google-explicit-constructor)
    Module* module = nullptr;
    Variable parameter = {};
  };
  struct Item {
    std::string kind;  ///< for messages, and for a split by kind
    std::vector<Field> fields;
    std::function<Values(const Values&)> forward;
    size_t takes = 1;      ///< values
    bool repeats = false;  ///< one of many alike, which a model runs again in backward to save memory
  };

  LayerList& add(Module& module);  ///< module.call()
  LayerList& add(std::string kind, std::vector<Field> fields, std::function<Variable(const Variable&)> forward);
  /// Layers that hand on several values.
  LayerList& add(Item item);
  LayerList& append(LayerList more);
  /// All items of it are of many alike.
  LayerList&& repeated() &&;

  std::vector<Item> items;
  /// What the model's loss makes of the last layer's value, where it has one: else whoever trains it brings one.
  std::function<Variable(const Variable& output, const std::vector<Tensor>& targets)> loss;
};

}  // namespace lockstep::nn
