// The layers of one stage. See module.h.
#include "pipeline/module.h"

#include <algorithm>
#include <set>

#include "autograd/activation_checkpoint.h"
#include "nn/named_fields.h"
#include "tensor/random.h"

namespace lockstep::pipeline {

Shapes Shapes::of(const Values& values, uint64_t random_call) {
  LOCKSTEP_CHECK(values.size() <= max_tensors, "[pipeline] expected at most ", max_tensors,
                 " tensors between two stages, got ", values.size(), "; concatenate some of them");
  Shapes shapes{{}, random_call};
  for (const Variable& v : values)
    shapes.tensors.push_back({v.dtype(), v.shape(), v.requires_grad(), !v.tensor().device().is_cpu()});
  return shapes;
}

std::string Shapes::text() const {
  std::string all;
  for (const One& one : tensors)
    all += str(all.empty() ? "" : ", ", one.dtype, " ", one.shape, one.wants_grad ? "" : " without gradient");
  return str(all, " after ", random_call, " random calls");
}

LayerSpec layer(std::string kind, LayerSpec::Forward forward) {
  return {.kind = std::move(kind), .forward = std::move(forward), .parameters = 0};
}

LayerSpec layer(std::string kind, std::function<Variable(const Variable&)> forward) {
  return layer(kind, [kind, fn = std::move(forward)](nn::Module*, const Values& inputs) {
    LOCKSTEP_CHECK(inputs.size() == 1, "[", kind, "] expected one tensor, got ", inputs.size(),
                   "; give layer() a function of Values for several");
    return Values{fn(inputs[0])};
  });
}

int first_of(const std::vector<LayerSpec>& layers, int i) {
  const LayerSpec& spec = layers.at(size_t(i));
  int first = 0;
  while (first < i && (spec.full || spec.ties.empty() || layers[size_t(first)].ties != spec.ties)) ++first;
  return first;
}

std::set<const FullModel*> StageModule::models() const {
  std::set<const FullModel*> all;
  for (const LayerSpec& spec : specs_)
    if (spec.full) all.insert(spec.full.get());
  return all;
}

std::unique_ptr<nn::Module> build(const std::vector<LayerSpec>& layers, int i) {
  const LayerSpec& spec = layers.at(size_t(i));
  if (!spec.make) return nullptr;
  const int first = first_of(layers, i);
  constexpr auto no_step = ~uint64_t(0);  // a step number that training never reaches
  const RandomScope here({.seed = random_state().seed, .step = no_step, .micro_batch = uint64_t(first)});
  auto made = layers[size_t(first)].make();
  LOCKSTEP_CHECK(made, "[pipeline] layer ", i, ": expected make() to give a module, got none; return one from make()");
  return made;
}

std::vector<std::string> kinds_of(const std::vector<LayerSpec>& layers) {
  std::vector<std::string> kinds;
  for (int i = 0; i < int(layers.size()); ++i) {
    const std::string& known = layers[size_t(i)].kind;
    const auto made = known.empty() ? build(layers, i) : nullptr;
    kinds.push_back(!known.empty() ? known : made ? made->kind() : "function");
  }
  return kinds;
}

std::vector<double> parameters_of(const std::vector<LayerSpec>& layers) {
  std::vector<double> counts;
  for (int i = 0; i < int(layers.size()); ++i) {
    double& count = counts.emplace_back();
    if (first_of(layers, i) != i) continue;
    count = double(layers[size_t(i)].parameters);
    if (count >= 0) continue;
    const auto made = build(layers, i);
    count = made ? double(made->parameter_count()) : 0;
  }
  return counts;
}

std::string StageModule::name_of(int layer) const {
  const LayerSpec& spec = specs_[size_t(layer)];
  return spec.name ? *spec.name : spec.ties.empty() ? std::to_string(layer) : "tied." + spec.ties[0];
}

StageModule::StageModule(const std::vector<LayerSpec>& layers, std::vector<Chunk> chunks, int checkpoint_interval)
    : specs_(layers), chunks_(std::move(chunks)), interval_(checkpoint_interval) {
  std::map<std::string, int> names;
  for (int i = 0; i < int(specs_.size()); ++i) {
    if (!specs_[size_t(i)].make || first_of(specs_, i) != i || name_of(i).empty()) continue;
    const auto [other, is_new] = names.emplace(name_of(i), i);
    LOCKSTEP_CHECK(is_new, "[pipeline] layers ", other->second, " and ", i, " are both called ", other->first,
                   "; give them different names");
  }
  for (const Chunk& chunk : chunks_) {
    for (int i = chunk.begin; i < chunk.end; ++i) {
      LOCKSTEP_CHECK(specs_[size_t(i)].make || specs_[size_t(i)].forward, "[pipeline] layer ", i,
                     ": expected a module, a function or both, got neither; set make or forward");
      const int first = first_of(specs_, i);
      if (layers_.count(first)) continue;
      if (auto made = build(specs_, i)) layers_[first] = std::move(made);
    }
  }
}

Values StageModule::run(int i, const Values& inputs) try {
  const LayerSpec& spec = specs_.at(size_t(i));
  const auto found = layers_.find(first_of(specs_, i));
  nn::Module* const module = found == layers_.end() ? nullptr : found->second.get();
  Values outputs;
  if (spec.forward) {
    outputs = spec.forward(module, inputs);
  } else {
    LOCKSTEP_CHECK(inputs.size() == 1, "expected one tensor, got ", inputs.size(),
                   "; give the layer a function with LayerSpec::with()");
    outputs = {module->call(inputs[0])};
  }
  LOCKSTEP_CHECK(!outputs.empty(), "expected the layer to return a tensor, got none; return one from forward()");
  for (const Variable& v : outputs)
    LOCKSTEP_CHECK(v.defined(), "expected the layer to return defined tensors, got an undefined one; give it a value");
  return outputs;
} catch (const Error& e) {
  const std::string& kind = specs_[size_t(i)].kind;
  fail(str("[pipeline] layer ", i, kind.empty() ? "" : str(" (", kind, ")"), ": ", e.what()));
}

Values StageModule::run(Chunk layers, Values values) {
  for (int i = layers.begin; i < layers.end; ++i) values = run(i, values);
  return values;
}

Values StageModule::forward(size_t chunk, const Values& inputs) {
  const auto [begin, end] = chunks_.at(chunk);
  if (interval_ <= 0) return run({begin, end}, inputs);
  // If the first layer is a tied token embedding, runs it without activation checkpointing: it stores nothing, and
  // checkpoint_many() would sum its gradient in a separate tensor, instead of adding rows to the existing gradient.
  int first = begin;
  Values values = inputs;
  const auto is_data = [&] {
    return std::none_of(values.begin(), values.end(), [](const Variable& v) { return v.requires_grad(); });
  };
  while (first < end && !specs_[size_t(first)].ties.empty() && is_data()) values = run(first++, values);
  for (; first < end; first += interval_) {
    const Chunk some{first, std::min(end, first + interval_)};
    values = checkpoint_many([this, some](const Values& in) { return run(some, in); }, values);
  }
  return values;
}

std::vector<StageModule::Numbered> StageModule::numbered_parameters() {
  std::vector<Numbered> all;
  std::set<const void*> visited;
  for (auto& [i, module] : layers_) {
    const LayerSpec& spec = specs_[size_t(i)];
    int place = 0;
    for (auto& p : module->named_parameters()) {
      if (!visited.insert(p.variable.impl().get()).second) continue;
      const auto tie = spec.full ? std::find(spec.ties.begin(), spec.ties.end(), p.name) : spec.ties.begin();
      all.push_back({p, i, place++, tie == spec.ties.end() ? "" : *tie, i});
      all.back().name = nn::joined(name_of(i), p.name);
      if (!spec.full) continue;
      const auto same = [&](const LayerSpec& other) { return other.full == spec.full; };
      all.back().layer = int(std::find_if(specs_.begin(), specs_.end(), same) - specs_.begin());
      all.back().place = spec.full->places.at(p.name);
    }
  }
  return all;
}

std::vector<nn::NamedParameter> StageModule::own_parameters(size_t chunk) {
  const auto [begin, end] = chunks_.at(chunk);
  std::vector<nn::NamedParameter> own;
  for (auto& p : numbered_parameters())
    if (p.tie.empty() && p.user >= begin && p.user < end && p.variable.requires_grad()) own.push_back(p);
  return own;
}

std::vector<nn::NamedParameter> StageModule::tied_parameters(const std::string& key) {
  std::vector<nn::NamedParameter> tied;
  for (auto& p : numbered_parameters())
    if (p.tie == key && p.variable.requires_grad()) tied.push_back(p);
  return tied;
}

void StageModule::fields(nn::Fields& f) {
  for (auto& [i, layer] : layers_) {
    if (const std::string name = name_of(i); !name.empty()) f(name, *layer);
    else layer->fields(f);
  }
}

}  // namespace lockstep::pipeline
