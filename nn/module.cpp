// Module: everything that is derived from fields(), and hooks. See module.h.
#include "nn/module.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <typeinfo>
#if __has_include(<cxxabi.h>)
#include <cxxabi.h>
#endif

#include "base/classic_text.h"
#include "nn/init.h"
#include "nn/named_fields.h"

namespace lockstep::nn {

namespace {

/// Calls visit(name, entry) for every field below `module`, parents first, with dotted names.
template <class Visit> void walk(Module& module, const std::string& prefix, const Visit& visit) {
  Fields fields;
  module.fields(fields);
  for (Fields::Entry& entry : fields.entries) {
    const std::string name = prefix + entry.name;
    entry.is_table =
        entry.parameter && (entry.cut.kind == Cut::Kind::vocabulary || module.table() != Module::Table::none);
    visit(name, entry);
    if (entry.module) walk(*entry.module, name.empty() ? "" : name + ".", visit);
  }
}

std::string with_commas(int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = int(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

template <class Item> std::string join(const std::vector<Item>& items) {
  std::string out;
  for (size_t i = 0; i < items.size() && i < 20; ++i) out += str("\n  ", items[i]);
  return items.size() > 20 ? out + str("\n  ... and ", items.size() - 20, " more") : out;
}

}  // namespace

Fields& Fields::operator()(const std::string& name, Variable& parameter, const Cut& cut) {
  if (parameter.defined()) entries.push_back({.name = name, .parameter = &parameter, .cut = cut});
  return *this;
}
Fields& Fields::fixed(const std::string& name, Variable& parameter) {
  if (parameter.defined()) entries.push_back({.name = name, .parameter = &parameter, .keeps_dtype = true});
  return *this;
}
Fields& Fields::operator()(const std::string& name, Tensor& buffer) {
  if (buffer.defined()) entries.push_back({.name = name, .buffer = &buffer});
  return *this;
}
Fields& Fields::statistic(const std::string& name, Tensor& buffer) {
  if (buffer.defined()) entries.push_back({.name = name, .buffer = &buffer, .is_statistic = true});
  return *this;
}
Fields& Fields::operator()(const std::string& name, Module& module, const Cut& cut) {
  entries.push_back({.name = name, .module = &module, .cut = cut});
  return *this;
}

std::string Module::kind() const {
  std::string name = typeid(*this).name();
#if __has_include(<cxxabi.h>)
  int status = 0;
  if (char* readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status)) {
    name = readable;
    std::free(readable);
  }
#endif
  const size_t colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

std::vector<NamedParameter> Module::named_parameters() {
  std::vector<NamedParameter> all;
  std::set<const void*> visited;
  walk(*this, "", [&](const std::string& name, Fields::Entry& entry) {
    if (entry.parameter && visited.insert(entry.parameter->impl().get()).second)
      all.push_back({name, *entry.parameter, entry.is_table, entry.keeps_dtype});
  });
  return all;
}

std::vector<Variable> Module::parameters() {
  std::vector<Variable> all;
  for (NamedParameter& p : named_parameters()) all.push_back(p.variable);
  return all;
}

std::vector<NamedBuffer> Module::named_buffers() {
  std::vector<NamedBuffer> all;
  walk(*this, "", [&](const std::string& name, Fields::Entry& entry) {
    if (entry.buffer) all.push_back({name, *entry.buffer});
  });
  return all;
}

std::vector<NamedField> named_fields(Module& module) {
  std::vector<NamedField> all;
  walk(module, "", [&](const std::string& name, Fields::Entry& entry) {
    if (!entry.module) all.push_back({name, entry.parameter, entry.buffer});
  });
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all{{"", this}};
  walk(*this, "", [&](const std::string& name, Fields::Entry& entry) {
    if (entry.module) all.emplace_back(name, entry.module);
  });
  return all;
}

std::vector<std::pair<std::string, Module*>> Module::children() {
  Fields fields;
  this->fields(fields);
  std::vector<std::pair<std::string, Module*>> all;
  for (auto& entry : fields.entries)
    if (entry.module) all.emplace_back(entry.name, entry.module);
  return all;
}

int64_t Module::parameter_count() {
  int64_t count = 0;
  for (const NamedParameter& p : named_parameters()) count += p.variable.numel();
  return count;
}

State Module::state() {
  State state;
  std::set<const void*> visited;
  walk(*this, "", [&](const std::string& name, Fields::Entry& entry) {
    if (entry.parameter && visited.insert(entry.parameter->impl().get()).second)
      state.emplace_back(name, entry.parameter->tensor());
    if (entry.buffer) state.emplace_back(name, *entry.buffer);
  });
  return state;
}

LoadReport Module::load_state(const State& state, bool strict) {
  std::map<std::string, const Tensor*> given;
  for (const auto& [name, tensor] : state) given[name] = &tensor;
  // Find the destination of each tensor by name. A shared parameter has several names; the state needs only one.
  std::vector<std::pair<Tensor, const Tensor*>> copies;
  std::vector<std::pair<Variable*, const Tensor*>> replaced;  // parameters that get the state's tensor
  std::map<const void*, bool> filled;
  std::map<const void*, std::string> first_name;
  std::vector<std::string> wrong;
  std::set<std::string> used;
  walk(*this, "", [&](const std::string& name, Fields::Entry& entry) {
    if (entry.module) return;
    const Tensor& place = entry.parameter ? entry.parameter->tensor() : *entry.buffer;
    const void* key = entry.parameter ? static_cast<const void*>(entry.parameter->impl().get()) : entry.buffer;
    first_name.emplace(key, name);
    const auto found = given.find(name);
    filled[key] |= found != given.end();
    if (found == given.end()) return;
    used.insert(name);
    const Tensor& source = *found->second;
    if (!(source.shape() == place.shape()))
      wrong.push_back(str(name, ": expected shape ", place.shape(), ", got ", source.shape()));
    else if (is_floating(source.dtype()) != is_floating(place.dtype()))
      wrong.push_back(str(name, ": expected ", place.dtype(), ", got ", source.dtype()));
    else if (entry.keeps_dtype && source.dtype() != place.dtype()) replaced.emplace_back(entry.parameter, &source);
    else copies.emplace_back(place, &source);
  });
  LoadReport report;
  for (const auto& [key, done] : filled)
    if (!done) report.missing.push_back(first_name[key]);
  for (const auto& [name, tensor] : state)
    if (!used.count(name)) report.unexpected.push_back(name);
  std::sort(report.missing.begin(), report.missing.end());
  std::string problems;
  if (!wrong.empty()) problems += "\n wrong:" + join(wrong);
  if (strict && !report.missing.empty()) problems += "\n missing:" + join(report.missing);
  if (strict && !report.unexpected.empty()) problems += "\n unexpected:" + join(report.unexpected);
  LOCKSTEP_CHECK(problems.empty(), "[load_state] the state does not fit this ", kind(), "; nothing was changed",
                 problems, "\nload a state of the same module");
  for (auto& [place, source] : copies) {
    if (place.storage()->origin()) place.storage()->refill();  // allocates a parameter that was built empty
    place.copy_(*source);
  }
  for (auto& [parameter, source] : replaced) parameter->set_tensor(source->to(parameter->device()).clone());
  return report;
}

Module& Module::to(DType dtype) {
  LOCKSTEP_CHECK(is_floating(dtype), "[Module::to] expected a floating dtype, got ", dtype);
  const MemoryScope scope(Memory::parameter);
  for (NamedParameter& p : named_parameters()) {
    if (p.keeps_dtype) continue;
    if (is_built_empty(p.variable))
      change_start(p.variable, p.variable.shape(), {.dtype = dtype, .device = p.variable.device()});
    else p.variable.set_tensor(p.variable.tensor().to(dtype));
  }
  walk(*this, "", [&](const std::string&, Fields::Entry& entry) {
    if (!entry.buffer || !is_floating(entry.buffer->dtype())) return;
    *entry.buffer = entry.buffer->to(entry.is_statistic && size_of(dtype) < 4 ? f32 : dtype);
  });
  return *this;
}

Module& Module::to(Device device) {
  const MemoryScope scope(Memory::parameter);
  for (NamedParameter& p : named_parameters()) {
    if (is_built_empty(p.variable))
      change_start(p.variable, p.variable.shape(), {.dtype = p.variable.dtype(), .device = device});
    else p.variable.set_tensor(p.variable.tensor().to(device));
  }
  walk(*this, "", [&](const std::string&, Fields::Entry& entry) {
    if (entry.buffer) *entry.buffer = entry.buffer->to(device);
  });
  return *this;
}

Module& Module::train(bool training) {
  apply([training](Module& module) {
    module.training_ = training;
    module.on_train(training);
  });
  return *this;
}

Module& Module::requires_grad_(bool wanted) {
  for (NamedParameter& p : named_parameters()) p.variable.requires_grad_(wanted);
  return *this;
}

void Module::zero_grad() {
  for (NamedParameter& p : named_parameters()) p.variable.clear_grad();
}

void Module::apply(const std::function<void(Module&)>& fn) {
  for (auto& [name, module] : named_modules()) fn(*module);
}

Module::Hooks& Module::hooks() {
  if (!hooks_) hooks_ = std::make_shared<Hooks>();
  return *hooks_;
}

Module::Calls Module::calls() {
  hooks();  // create them now, so that the handle sees hooks added later
  Calls calls;
  calls.hooks_ = hooks_;
  return calls;
}

void Module::wrap_call(CallHook hook) {
  hooks();
  LOCKSTEP_CHECK(!hook || !hooks_->around, "[", kind(),
                 "] expected a module whose calls are not wrapped yet, these are; unwrap it first: wrap_call({})");
  hooks_->around = std::move(hook);
}

int Module::before_forward(ForwardHook hook) {
  hooks();
  hooks_->before.emplace_back(++hooks_->last_id, std::move(hook));
  return hooks_->last_id;
}

int Module::after_forward(OutputHook hook) {
  return after_forward_all([hook = std::move(hook)](Module& m, const Variables& inputs, const Variables& outputs) {
    hook(m, inputs, outputs.empty() ? Variable() : outputs[0]);
  });
}

int Module::after_forward_all(OutputsHook hook, bool looks) {
  hooks();
  hooks_->after.push_back({++hooks_->last_id, std::move(hook), looks});
  return hooks_->last_id;
}

void Module::Calls::remove_hook(int id) const {
  const auto hooks = hooks_.lock();
  if (!hooks) return;
  std::erase_if(hooks->before, [id](const auto& hook) { return hook.first == id; });
  std::erase_if(hooks->after, [id](const auto& hook) { return hook.id == id; });
}
void Module::Calls::unwrap() const {
  if (const auto hooks = hooks_.lock()) hooks->around = {};
}
void Module::Calls::run_here() const {
  if (const auto hooks = hooks_.lock()) hooks->run_on.reset();
}

bool Module::is_watched() const {
  return hooks_ && (hooks_->around || std::any_of(hooks_->after.begin(), hooks_->after.end(),
                                                  [](const Hooks::After& hook) { return hook.looks; }));
}

void Module::run_on(std::optional<RunOn> placement) {
  hooks();
  LOCKSTEP_CHECK(!placement || !hooks_->run_on, "[", kind(), "] its calls run on ",
                 hooks_->run_on ? hooks_->run_on->device : cpu, " already, by another device map; delete that map");
  hooks_->run_on = std::move(placement);
}

void Module::copy_hooks(const Module& other) {
  if (hooks_ || other.hooks_) hooks_ = other.hooks_ ? std::make_shared<Hooks>(*other.hooks_) : nullptr;
}

std::shared_ptr<void> Module::begin_call(const Variables& inputs) {
  for (auto& hook : hooks_->before) hook.second(*this, inputs);
  return hooks_->run_on && hooks_->run_on->hold ? hooks_->run_on->hold() : nullptr;
}

void Module::end_call(const Variables& inputs, const Variables& outputs) {
  for (auto& hook : hooks_->after) hook.call(*this, inputs, outputs);
}

Variable Module::call_hooked(const Variable& x, Variable (*forward)(Module&, const Variable&)) {
  const auto run = [this, forward](const Variables& inputs) {  // the CallHook may run this later, again
    const std::shared_ptr<void> held = begin_call(inputs);
    Variable output = forward(*this, hooks_->run_on ? moved_here(inputs[0]) : inputs[0]);
    move_away(output);
    end_call(inputs, {output});
    return Variables{output};
  };
  return (hooks_->around ? hooks_->around({x}, run) : run({x})).at(0);
}

std::string summary(Module& module) {
  struct Row {
    std::string name, kind, options;
    int64_t count, trained;
  };
  std::vector<Row> rows;
  std::set<const void*> visited;
  int64_t total = 0, trained_total = 0, bytes = 0;
  for (auto& [name, child] : module.named_modules()) {
    Row row{name.empty() ? "(model)" : name, child->kind(), child->options(), 0, 0};
    Fields fields;
    child->fields(fields);
    for (auto& entry : fields.entries) {
      if (!entry.parameter || !visited.insert(entry.parameter->impl().get()).second) continue;
      row.count += entry.parameter->numel();
      if (entry.parameter->requires_grad()) row.trained += entry.parameter->numel();
      bytes += entry.parameter->numel() * size_of(entry.parameter->dtype());
    }
    total += row.count;
    trained_total += row.trained;
    rows.push_back(row);
  }
  size_t name_width = 4, kind_width = 4, options_width = 7;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.name.size());
    kind_width = std::max(kind_width, row.kind.size());
    options_width = std::max(options_width, row.options.size());
  }
  std::string out;
  const auto line = [&](const std::string& a, const std::string& b, const std::string& c, const std::string& d) {
    out += format("%-*s%-*s%-*s%14s\n", int(name_width) + 2, a.c_str(), int(kind_width) + 2, b.c_str(),
                  int(options_width) + 2, c.c_str(), d.c_str());
  };
  line("name", "kind", "options", "parameters");
  for (const Row& row : rows) {
    std::string count = row.count == 0 ? "" : with_commas(row.count);
    if (row.count > row.trained) count += row.trained == 0 ? " frozen" : " part frozen";
    line(row.name, row.kind, row.options, count);
  }
  return out + "total " + with_commas(total) + " parameters (" + with_commas(trained_total) + " trained), " +
         format("%.1f MiB\n", double(bytes) / 1048576);
}

}  // namespace lockstep::nn
