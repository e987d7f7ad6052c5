// Makes a ModelShape from a model. See model_shape.h.
#include "engine/model_shape.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "dist/shard.h"
#include "nn/layer_list.h"

namespace lockstep::engine {

ModelShape::Parameter ModelShape::Parameter::sharded(int ranks) const {
  Parameter part = *this;
  if (dim < 0) return part;
  int64_t& size = part.shape[int(dim)] = 0;
  for (const int64_t block : blocks) size += dist::shard_range(block, ranks, 0).size();
  return part;
}

int64_t ModelShape::numel() const {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.numel();
  return n;
}

int64_t ModelShape::columns() const {
  int64_t all = 0;
  for (const Parameter& p : parameters)
    for (const int64_t block : p.blocks)
      if (!p.is_table) all = std::gcd(all, block);
  return all;
}

int64_t ModelShape::trained() const {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.trains ? p.numel() : 0;
  return n;
}

double ModelShape::flops(const Layer& layer, int ranks) const {
  const auto products = [&](int among) {
    double sum = 0;
    for (const int64_t i : layer.multiplied) {  // an expert's products run for the fraction of tokens that choose it
      const Parameter& p = parameters[size_t(i)];
      sum += 2 * double(p.sharded(among).numel()) * (p.expert < 0 ? 1 : double(top_k) / double(experts));
    }
    return sum;
  };
  if (layer.measured < 0) return products(ranks) + layer.beside / ranks;
  return ranks == 1 || layer.multiplied.empty() ? layer.measured : layer.measured * products(ranks) / products(1);
}

double ModelShape::forward_flops() const {
  double sum = 0;
  for (const Layer& layer : list) sum += flops(layer);
  return sum;
}

namespace {

using CutKind = nn::Cut::Kind;

/// Walks the fields of a module and applies each field's rule for tensor parallelism (nn::Cut) to its parameters.
struct Asking {
  ModelShape& m;
  std::map<const void*, size_t> places;  // index of each parameter
  std::map<const nn::Module*, std::vector<nn::Fields::Entry>> fields;

  void parameters(nn::Module& module, const std::string& prefix, const nn::Cut& above, int64_t expert) {
    nn::Fields f;
    module.fields(f);
    int64_t next = 0;  // number of the next expert
    for (const auto& entry : f.entries) {
      // Sharding by columns or rows applies to the parameters of a Linear itself. Modules inside the Linear, such as
      // adapters, state their own rule.
      const bool own = above.kind == CutKind::columns || above.kind == CutKind::rows;
      const bool open = above.kind == CutKind::none || above.kind == CutKind::tokens || (own && entry.module);
      const nn::Cut& cut = open ? entry.cut : above;
      const std::string name = prefix + entry.name;
      for (const auto& block : cut.blocks)
        if (block.unit == "heads" || block.unit == "kv_heads")
          m.heads = m.heads == 0 ? block.count : std::min(m.heads, block.count);
      if (entry.parameter && places.emplace(entry.parameter->impl().get(), m.parameters.size()).second) {
        const Shape& shape = entry.parameter->shape();
        const int dim = dim_of(cut, shape);
        m.parameters.push_back({name, shape, expert, dim,
                                dim < 0 ? std::vector<int64_t>{} : blocks_of(cut, shape[dim], name),
                                cut.kind == CutKind::vocabulary || module.table() != nn::Module::Table::none,
                                entry.parameter->requires_grad()});
      }
      const bool is_expert = entry.cut.kind == CutKind::experts;
      if (entry.module) parameters(*entry.module, name + ".", cut, is_expert ? next : expert);
      m.experts = std::max(m.experts, next += is_expert);
    }
    fields.emplace(&module, std::move(f.entries));
  }

  void layer(ModelShape::Layer& l, nn::Module& module, const nn::Cut& cut) {
    l.beside += module.flops_beside(m.context);
    // Column-parallel Linears and output heads all-reduce their input's gradient in backward. Row-parallel Linears and
    // embeddings all-reduce their output in forward.
    const bool is_table = cut.kind == CutKind::vocabulary, picks = module.table() == nn::Module::Table::picked;
    l.reduces_back += cut.kind == CutKind::columns || (is_table && !picks);
    l.reduces += cut.kind == CutKind::rows || (is_table && picks);
    for (const auto& entry : fields.at(&module)) {
      if (entry.parameter) use(l, places.at(entry.parameter->impl().get()), !picks && entry.parameter->dim() > 1);
      l.has_experts |= entry.cut.kind == CutKind::experts;
      const bool stays = cut.kind == CutKind::full || cut.kind == CutKind::experts;
      if (entry.module) layer(l, *entry.module, stays ? cut : entry.cut);
    }
  }
  static void use(ModelShape::Layer& l, size_t parameter, bool multiplies) {
    l.parameters.push_back(int64_t(parameter));
    if (multiplies) l.multiplied.push_back(int64_t(parameter));
  }
};

}  // namespace

ModelShape shape_of(nn::Module& model, int64_t width, int64_t context, int64_t vocab) {
  const std::string options = model.options();
  ModelShape m{.name = model.kind() + (options.empty() ? "" : " of " + options),
               .width = width,
               .context = context,
               .vocab = vocab};
  Asking asking{.m = m};
  asking.parameters(model, "", {}, -1);
  std::map<const nn::Module*, nn::Cut> cuts;
  for (const auto& [module, entries] : asking.fields)
    for (const auto& entry : entries)
      if (entry.module) cuts.emplace(entry.module, entry.cut);
  for (const auto& item : model.layers().items) {
    ModelShape::Layer layer{.kind = item.kind, .repeats = item.repeats, .out = double(width)};
    for (const auto& field : item.fields) {
      if (field.module) asking.layer(layer, *field.module, cuts[field.module]);
      else Asking::use(layer, asking.places.at(field.parameter.impl().get()), false);
    }
    m.layers += layer.beside > 0;
    m.list.push_back(std::move(layer));
  }
  return m;
}

}  // namespace lockstep::engine
