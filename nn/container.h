#pragma once
// Sequential and ModuleList: modules that consist of modules.
#include <type_traits>

#include "nn/layer_list.h"

namespace lockstep::nn {

/// Runs its layers in order: Sequential net(Linear({.in = 2, .out = 8}), ReLU(), Linear({.in = 8, .out = 1}));
/// The layers are moved in and get the names "0", "1", ...
struct Sequential : Layer<Sequential> {
  Sequential() = default;
  /// Any number of layers.
  template <class First, class... Rest>
  requires(std::is_base_of_v<Module, std::decay_t<First>> &&
           !std::is_same_v<std::decay_t<First>, Sequential>) explicit Sequential(First first, Rest... rest) {
    add(std::move(first));
    (add(std::move(rest)), ...);
  }
  /// Appends a layer.
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
  /// The layer at position i; throws std::out_of_range.
  Module& operator[](size_t i) { return *items.at(i); }
  /// Number of layers.
  size_t size() const { return items.size(); }

  std::vector<std::unique_ptr<Module>> items;
};

/// A list of modules of one type, for loops in forward().
template <class T> struct ModuleList : Module {
  /// Constructs a T from `options` and appends it.
  template <class Options> T& emplace_back(const Options& options) {
    return *items.emplace_back(std::make_unique<T>(options));
  }
  /// Appends a module.
  T& push_back(T module) { return *items.emplace_back(std::make_unique<T>(std::move(module))); }
  /// The module at position i; throws std::out_of_range.
  T& operator[](size_t i) { return *items.at(i); }
  /// Number of modules.
  size_t size() const { return items.size(); }
  std::string kind() const override { return "ModuleList"; }
  void fields(Fields& f) override {
    for (size_t i = 0; i < items.size(); ++i) f(std::to_string(i), *items[i]);
  }

  std::vector<std::unique_ptr<T>> items;
};

}  // namespace lockstep::nn
