#pragma once
// Modules made of modules.
#include <type_traits>

#include "nn/layer_list.h"

namespace lockstep::nn {

/// Runs its layers in order: Sequential net(Linear({.in = 2, .out = 8}), ReLU(), Linear({.in = 8, .out = 1}));
/// Layers are called "0", "1", ... and are moved in.
struct Sequential : Layer<Sequential> {
  Sequential() = default;
  template <class First, class... Rest>
  requires(std::is_base_of_v<Module, std::decay_t<First>> &&
           !std::is_same_v<std::decay_t<First>, Sequential>) explicit Sequential(First first, Rest... rest) {
    add(std::move(first));
    (add(std::move(rest)), ...);
  }
  template <class L>
  requires std::is_base_of_v<Module, L> Sequential& add(L layer) { return add(std::make_unique<L>(std::move(layer))); }
  Sequential& add(std::unique_ptr<Module> layer) {
    items.push_back(std::move(layer));
    return *this;
  }

  Variable forward(Variable x) {
    for (auto& layer : items) x = layer->call(x);
    return x;
  }
  void fields(Fields& f) override {
    for (size_t i = 0; i < items.size(); ++i) f(std::to_string(i), *items[i]);
  }
  LayerList layers() override {
    LayerList list;
    for (auto& layer : items) list.add(*layer);
    return list;
  }
  Module& operator[](size_t i) { return *items.at(i); }
  size_t size() const { return items.size(); }

  std::vector<std::unique_ptr<Module>> items;
};

/// A list of one kind of module, for loops in forward().
template <class T> struct ModuleList : Module {
  /// Constructs one more from `options`.
  template <class Options> T& emplace_back(const Options& options) {
    return *items.emplace_back(std::make_unique<T>(options));
  }
  T& push_back(T module) { return *items.emplace_back(std::make_unique<T>(std::move(module))); }
  T& operator[](size_t i) { return *items.at(i); }
  size_t size() const { return items.size(); }
  std::string kind() const override { return "ModuleList"; }
  void fields(Fields& f) override {
    for (size_t i = 0; i < items.size(); ++i) f(std::to_string(i), *items[i]);
  }

  std::vector<std::unique_ptr<T>> items;
};

}  // namespace lockstep::nn
