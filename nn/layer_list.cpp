// LayerList, and the members of Module that use it. See layer_list.h.
#include "nn/layer_list.h"

#include <algorithm>

namespace lockstep::nn {

LayerList& LayerList::add(Module& module) {
  return add(module.kind(), {module}, [&module](const Variable& x) { return module.call(x); });
}

LayerList& LayerList::add(std::string kind, std::vector<Field> fields,
                          std::function<Variable(const Variable&)> forward) {
  return add(Item{.kind = std::move(kind),
                  .fields = std::move(fields),
                  .forward = [fn = std::move(forward)](const Values& in) { return Values{fn(in.at(0))}; }});
}

LayerList& LayerList::add(Item item) {
  items.push_back(std::move(item));
  return *this;
}

LayerList& LayerList::append(LayerList more) {
  for (Item& item : more.items) items.push_back(std::move(item));
  return *this;
}

LayerList&& LayerList::repeated() && {
  for (Item& item : items) item.repeats = true;
  return std::move(*this);
}

bool LayerList::any_repeats() const {
  return std::ranges::any_of(items, [](const Item& item) { return item.repeats; });
}

LayerList Module::layers() { return LayerList().add(*this); }

Variable Module::call(const Variable& x) {
  const LayerList list = layers();
  LOCKSTEP_CHECK(list.items.size() > 1, "[", kind(),
                 "] expected a module whose forward() takes and returns one variable, or that overrides layers(), got "
                 "neither; override layers()");
  Values values{x};
  for (const LayerList::Item& item : list.items) values = item.forward(values);
  return values.at(0);
}

Variable own_loss(Module& model) {
  Variable total;
  for (auto& [name, module] : model.named_modules()) {
    const Variable one = module->own_loss();
    if (one.defined()) total = total.defined() ? add(total, one) : one;
  }
  return total;
}

}  // namespace lockstep::nn
