// Divides a model into pipeline layers, as the model's layers() function says. See layers.h.
#include "pipeline/layers.h"

#include "autograd/activation_checkpoint.h"
#include "autograd/ops.h"

namespace lockstep::pipeline {
namespace {

/// A module or a parameter, with its name in the model.
struct Part {
  std::string name;
  nn::LayerList::Field field;
  bool is_table = false;
};

/// The modules and parameters that one layer uses.
struct View : nn::Module {
  View(std::shared_ptr<nn::Module> of, std::vector<Part> some) : model(std::move(of)), parts(std::move(some)) {}
  void fields(nn::Fields& f) override {
    for (auto& [name, field, is_table] : parts)
      field.module ? f(name, *field.module)
                   : f(name, field.parameter, is_table ? nn::cut::rows_of_vocabulary : nn::Cut());
  }
  std::shared_ptr<nn::Module> model;
  std::vector<Part> parts;
};

const void* key_of(const nn::LayerList::Field& field) {
  return field.module ? static_cast<const void*>(field.module) : field.parameter.impl().get();
}

}  // namespace

ModelLayers layers_of(const std::shared_ptr<nn::Module>& model, bool recompute) {
  LOCKSTEP_CHECK(model, "[pipeline] expected a model, got none; pass one");
  const auto full = std::make_shared<FullModel>(FullModel{.model = model});
  std::map<const void*, Part> parts;  // a shared module or parameter has the first of its names
  for (auto& [name, module] : model->named_modules()) parts.emplace(module, Part{name, *module});
  for (auto& p : model->named_parameters()) {
    parts.emplace(p.variable.impl().get(), Part{p.name, p.variable, p.is_table});
    full->places.emplace(p.name, int(full->places.size()));
  }
  const nn::LayerList list = model->layers();
  std::map<const void*, std::vector<size_t>> users;
  std::vector<std::vector<nn::NamedParameter>> used(list.items.size());
  for (size_t i = 0; i < list.items.size(); ++i) {
    View view(model, {});
    for (const auto& field : list.items[i].fields) {
      LOCKSTEP_CHECK(parts.count(key_of(field)), "[pipeline] layer ", i, " (", list.items[i].kind, ") of ",
                     model->kind(), " uses a ", field.module ? field.module->kind() : "parameter",
                     " that its fields() do not name; name it there");
      view.parts.push_back(parts.at(key_of(field)));
    }
    used[i] = view.named_parameters();
    for (auto& p : used[i]) users[p.variable.impl().get()].push_back(i);
  }
  for (auto& p : model->named_parameters())
    LOCKSTEP_CHECK(users.count(p.variable.impl().get()), "[pipeline] no layer of ", model->kind(), " uses ", p.name,
                   "; name it in layers()");

  ModelLayers all;
  for (size_t i = 0; i < list.items.size(); ++i) {
    const nn::LayerList::Item& item = list.items[i];
    LayerSpec spec{.kind = item.kind, .parameters = 0, .name = "", .full = full};
    std::vector<Part> own;  // shared parameters come first
    for (auto& p : used[i]) {
      const auto& where = users.at(p.variable.impl().get());
      if (where[0] == i) spec.parameters += p.variable.numel();
      if (where.size() == 1) continue;
      own.push_back(parts.at(p.variable.impl().get()));
      spec.ties.push_back(own.back().name);
    }
    std::vector<nn::Module*> below;
    for (const auto& field : item.fields) {
      own.push_back(parts.at(key_of(field)));
      if (field.module)
        for (auto& [name, module] : field.module->named_modules()) below.push_back(module);
    }
    spec.make = [model, own] { return std::make_unique<View>(model, own); };
    spec.forward = [run = item.forward, wanted = item.takes, first = i == 0, below,
                    again = recompute && (item.repeats || !list.any_repeats())](nn::Module*, const Values& in) {
      const auto fn = [&run, &below, wanted, first](const Values& in) {
        const size_t takes = wanted > 0 ? wanted : first ? in.size() : 1;
        LOCKSTEP_CHECK(in.size() == takes || (in.size() == takes + 1 && !first), "expected ", takes, " tensors, got ",
                       in.size(),
                       first ? "; Item::takes of the first of layers() is the number of a sample's inputs"
                             : "; return that many from the layer before it");
        Values out = run(Values(in.begin(), in.begin() + int64_t(takes)));
        Variable extra = in.size() > takes ? in.back() : Variable();
        for (nn::Module* module : below) {  // in the order in which nn::own_loss() adds them up
          const Variable one = module->own_loss();
          if (one.defined()) extra = extra.defined() ? add(extra, one) : one;
        }
        if (extra.defined()) out.push_back(extra);
        return out;
      };
      return again ? checkpoint_many(fn, in) : fn(in);
    };
    all.layers.push_back(std::move(spec));
  }
  if (list.loss) {
    all.loss = [model, own = list.loss](const Values& out, const std::vector<Tensor>& targets) {
      const Variable loss = own(out.at(0), targets);
      return out.size() > 1 && NoGrad::grad_enabled() ? add(loss, out[1].to(loss.dtype())) : loss;
    };
  }
  return all;
}

}  // namespace lockstep::pipeline
