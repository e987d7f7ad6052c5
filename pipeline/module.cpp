#include "pipeline/module.h"

#include <algorithm>
#include <set>

#include "autograd/checkpoint.h"
#include "tensor/random.h"

namespace lockstep::pipeline {

LayerSpec layer(std::string kind, LayerSpec::Forward forward) {
  return {std::move(kind), {}, std::move(forward), 0, {}};
}

LayerSpec layer(std::string kind, std::function<Variable(const Variable&)> forward) {
  return layer(kind, [kind, fn = std::move(forward)](nn::Module*, const Values& inputs) {
    LOCKSTEP_CHECK(inputs.size() == 1, "[", kind, "] expected one tensor, got ", inputs.size());
    return Values{fn(inputs[0])};
  });
}

std::vector<std::string> keys_of(const LayerSpec& layer) {
  std::vector<std::string> keys = layer.shared;
  if (!layer.key.empty()) keys.push_back(layer.key);
  return keys;
}

std::set<const WholeModel*> StageModule::models() const {
  std::set<const WholeModel*> all;
  for (const LayerSpec& spec : specs_)
    if (spec.whole) all.insert(spec.whole.get());
  return all;
}

std::unique_ptr<nn::Module> build(const std::vector<LayerSpec>& layers, int i) {
  const LayerSpec& spec = layers.at(size_t(i));
  if (!spec.make) return nullptr;
  int first = i;
  for (int k = i; k-- > 0;)
    if (!spec.key.empty() && layers[size_t(k)].key == spec.key) first = k;
  const RandomState before = random_state();
  set_random_state({.seed = before.seed,
                    .step = ~uint64_t(0),
                    .micro_batch = uint64_t(first)});  // no step of a training has this number
  auto made = layers[size_t(first)].make();
  set_random_state(before);
  LOCKSTEP_CHECK(made, "[pipeline] layer ", i, ": expected make() to give a module, got none");
  return made;
}

std::vector<std::string> kinds_of(const std::vector<LayerSpec>& layers) {
  std::vector<std::string> kinds;
  for (int i = 0; i < int(layers.size()); ++i) {
    kinds.push_back(layers[size_t(i)].kind);
    if (!kinds.back().empty()) continue;
    const auto made = build(layers, i);
    kinds.back() = made ? made->kind() : "function";
  }
  return kinds;
}

std::vector<double> parameters_of(const std::vector<LayerSpec>& layers) {
  std::vector<double> counts;
  std::set<std::string> seen;
  for (int i = 0; i < int(layers.size()); ++i) {
    const LayerSpec& spec = layers[size_t(i)];
    const bool again = !spec.key.empty() && !seen.insert(spec.key).second;
    const auto made = again || spec.parameters >= 0 ? nullptr : build(layers, i);
    counts.push_back(again  ? 0
                     : made ? double(made->parameter_count())
                            : double(std::max<int64_t>(spec.parameters, 0)));
  }
  return counts;
}

namespace {
std::string joined_name(const std::string& layer, const std::string& parameter) {
  return layer.empty() ? parameter : layer + "." + parameter;
}
}  // namespace

int StageModule::first_of(const std::string& key) const {
  int first = 0;
  while (specs_[size_t(first)].key != key) ++first;
  return first;
}

std::string StageModule::name_of(int layer) const {
  const LayerSpec& spec = specs_[size_t(layer)];
  return spec.name ? *spec.name : spec.key.empty() ? std::to_string(layer) : "tied." + spec.key;
}

StageModule::StageModule(const std::vector<LayerSpec>& layers, std::vector<Chunk> chunks, int checkpoint_interval)
    : specs_(layers), chunks_(std::move(chunks)), interval_(checkpoint_interval) {
  std::map<std::string, int> names;
  for (int i = 0; i < int(specs_.size()); ++i) {
    if (!specs_[size_t(i)].make || (!specs_[size_t(i)].key.empty() && first_of(specs_[size_t(i)].key) != i) ||
        name_of(i).empty())
      continue;
    const auto [other, is_new] = names.emplace(name_of(i), i);
    LOCKSTEP_CHECK(is_new, "[pipeline] layers ", other->second, " and ", i, " are both called ", other->first,
                   "; names of layers must differ");
  }
  for (const Chunk& chunk : chunks_) {
    for (int i = chunk.begin; i < chunk.end; ++i) {
      const LayerSpec& spec = specs_[size_t(i)];
      LOCKSTEP_CHECK(spec.make || spec.forward, "[pipeline] layer ", i,
                     ": expected a module, a function or both, got neither");
      if (!spec.key.empty() && tied_.count(spec.key)) continue;
      auto made = build(specs_, i);
      if (made) (spec.key.empty() ? layers_[i] : tied_[spec.key]) = std::move(made);
    }
  }
}

Values StageModule::run(int i, const Values& inputs) {
  const LayerSpec& spec = specs_.at(size_t(i));
  nn::Module* module = nullptr;
  if (!spec.key.empty()) module = tied_.at(spec.key).get();
  else if (const auto found = layers_.find(i); found != layers_.end()) module = found->second.get();
  Values outputs;
  if (spec.forward) {
    outputs = spec.forward(module, inputs);
  } else {
    LOCKSTEP_CHECK(inputs.size() == 1, "expected one tensor, got ", inputs.size(),
                   "; give the layer a function with LayerSpec::with()");
    outputs = {module->call(inputs[0])};
  }
  LOCKSTEP_CHECK(!outputs.empty(), "expected it to give a tensor, got none");
  for (const Variable& v : outputs) LOCKSTEP_CHECK(v.defined(), "expected it to give tensors, got an undefined one");
  return outputs;
}

Values StageModule::forward(size_t chunk, const Values& inputs) {
  const auto [begin, end] = chunks_.at(chunk);
  Values values = inputs;
  const auto run_named = [this](int i, const Values& in) {
    try {
      return run(i, in);
    } catch (const Error& e) {
      const std::string& kind = specs_[size_t(i)].kind;
      fail(str("[pipeline] layer ", i, kind.empty() ? "" : str(" (", kind, ")"), ": ", e.what()));
    }
  };
  if (interval_ <= 0) {
    for (int i = begin; i < end; ++i) values = run_named(i, values);
    return values;
  }
  // A tied table of tokens adds its rows to the gradient that is there, without a pass of its own in which they would
  // be summed apart. It keeps nothing anyway.
  int begins = begin;
  const auto is_tied = [this](int i) { return !specs_[size_t(i)].shared.empty() || !specs_[size_t(i)].key.empty(); };
  const auto is_data = [&] {
    return std::none_of(values.begin(), values.end(), [](const Variable& v) { return v.requires_grad(); });
  };
  while (begins < end && is_tied(begins) && is_data()) values = run_named(begins++, values);
  for (int first = begins; first < end; first += interval_) {
    const int last = std::min(end, first + interval_);
    values = checkpoint_many(
        [run_named, first, last](const std::vector<Variable>& in) {
          Values now = in;
          for (int i = first; i < last; ++i) now = run_named(i, now);
          return now;
        },
        values);
  }
  return values;
}

std::vector<nn::NamedParameter> StageModule::own_parameters(size_t chunk) {
  std::vector<nn::NamedParameter> all;
  for (auto& [i, layer] : layers_) {
    if (i < chunks_.at(chunk).begin || i >= chunks_[chunk].end) continue;
    const auto& shared = specs_[size_t(i)].shared;
    for (auto& p : layer->named_parameters()) {
      if (p.variable.requires_grad() && std::find(shared.begin(), shared.end(), p.name) == shared.end())
        all.push_back({joined_name(name_of(i), p.name), p.variable});
    }
  }
  return all;
}

std::vector<StageModule::Numbered> StageModule::numbered_parameters() {
  std::vector<Numbered> all;
  const auto add = [&](int layer, nn::Module& m, const std::string& key) {
    int place = 0;
    for (auto& p : m.named_parameters())
      all.push_back({joined_name(name_of(layer), p.name), p.variable, layer, place++, key});
  };
  std::set<const void*> seen;
  for (auto& [i, layer] : layers_) {
    const LayerSpec& spec = specs_[size_t(i)];
    if (!spec.whole) {
      add(i, *layer, "");
      continue;
    }
    for (auto& p : layer->named_parameters()) {
      if (!seen.insert(p.variable.impl().get()).second) continue;
      const bool tied = std::find(spec.shared.begin(), spec.shared.end(), p.name) != spec.shared.end();
      int first = 0;
      while (specs_[size_t(first)].whole != spec.whole) ++first;
      all.push_back({p.name, p.variable, first, spec.whole->places.at(p.name), tied ? p.name : ""});
    }
  }
  for (auto& [key, layer] : tied_) add(first_of(key), *layer, key);
  return all;
}

std::vector<nn::NamedParameter> StageModule::tied_parameters(const std::string& key) {
  std::vector<nn::NamedParameter> all;
  for (auto& [i, layer] : layers_) {
    const auto& shared = specs_[size_t(i)].shared;
    if (!all.empty() || std::find(shared.begin(), shared.end(), key) == shared.end()) continue;
    for (auto& p : layer->named_parameters())
      if (p.name == key && p.variable.requires_grad()) all.push_back(p);
  }
  if (tied_.count(key))
    for (auto& p : tied_.at(key)->named_parameters())
      if (p.variable.requires_grad()) all.push_back({joined_name(name_of(first_of(key)), p.name), p.variable});
  return all;
}

void StageModule::fields(nn::Fields& f) {
  const auto add = [&](const std::string& name, nn::Module& m) {
    if (name.empty()) m.fields(f);
    else f(name, m);
  };
  for (auto& [i, layer] : layers_) add(name_of(i), *layer);
  for (auto& [key, layer] : tied_) add(name_of(first_of(key)), *layer);
}

}  // namespace lockstep::pipeline
