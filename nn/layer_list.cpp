// LayerList, and the members of Module that use it. See layer_list.h.
#include "nn/layer_list.h"

#include <algorithm>

#include "base/suggest.h"

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

LayerList Module::layers() {
  const auto run = [this](const Values& in) { return Values{in.size() == 1 ? call(in[0]) : call_many(in)}; };
  return LayerList().add({.kind = kind(), .fields = {*this}, .forward = run, .takes = 0});
}

Variable Module::call(const Variable& x) { return Module::call_many({x}); }

Variable Module::call_many(const Values& inputs) {
  const LayerList list = layers();
  const size_t n = inputs.size(), takes = list.items.empty() ? 0 : list.items[0].takes;
  // A list of one layer may be the default, which would call the module again.
  LOCKSTEP_CHECK(list.items.size() > 1 ? takes == 0 || takes == n : takes > 1 && takes == n, "[", kind(),
                 "] expected a module whose forward() takes ", counted(int64_t(n), "variable"),
                 " and returns one, or whose layers() take ", n > 1 ? "as many (Item::takes)" : "it",
                 ", got neither; override layers()");
  Values values = inputs;
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
