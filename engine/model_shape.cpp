// Makes a ModelShape from a model, measures its layers, and converts it to JSON. See model_shape.h.
#include "engine/model_shape.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "autograd/ops.h"
#include "dist/shard.h"
#include "engine/config_table.h"
#include "nn/build_empty.h"
#include "parallel/moe/expert_parallel.h"
#include "tensor/check.h"
#include "tensor/clock.h"
#include "tensor/flops.h"
#include "tensor/random_scope.h"

namespace lockstep::engine {

using data::Json;

ModelShape::Parameter ModelShape::Parameter::sliced(int ranks) const {
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
      sum += 2 * double(p.sliced(among).numel()) * (p.expert < 0 ? 1 : double(top_k) / double(experts));
    }
    return sum;
  };
  if (layer.measured < 0) return products(ranks) + layer.beside / ranks;
  return ranks == 1 || layer.multiplied.empty() ? layer.measured : layer.measured * products(ranks) / products(1);
}

LayerSeconds waits_for_slices(const ModelShape& model, const ModelShape::Layer& layer, int ranks,
                              const LayerSeconds& own, int64_t chunks, const std::function<double(int64_t part)>& sum) {
  const double all = model.flops(layer, ranks);
  // Returns the fraction of the layer's FLOPs that each of `sums` all-reduces can overlap with: the FLOPs of products
  // with weights sharded along `dim`, divided by the layer's FLOPs and by `sums`.
  const auto share = [&](int64_t dim, int64_t sums) {
    double products = 0;
    for (const int64_t i : layer.multiplied) {
      const ModelShape::Parameter& p = model.parameters[size_t(i)];
      if (p.dim == dim && !p.is_table) products += 2 * double(p.sliced(ranks).numel());
    }
    return all > 0 && sums > 0 ? std::min(1., products / all) / double(sums) : 0;
  };
  const double product = own.forward * share(1, layer.reduces),
               weight = own.backward / 2 * share(0, layer.reduces_back);
  const double part = product > 0 ? double(chunks) : 1, one = sum(int64_t(part));
  return {double(layer.reduces) * (one + (part - 1) * std::max(0., one - product / part)),
          double(layer.reduces_back) * std::max(0., sum(1) - weight)};
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
      const bool stays = cut.kind == CutKind::whole || cut.kind == CutKind::experts;
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

ModelShape shape_of(const std::function<std::unique_ptr<nn::Module>()>& make, int64_t width, int64_t context,
                    int64_t vocab, const ExpertShape& e) {
  const RandomScope here;
  const nn::BuildEmpty scope;
  const auto model = make();
  if (e.experts > 0) moe::add_experts(*model, {.experts = e.experts, .top_k = e.top_k}, e.every);
  ModelShape m = shape_of(*model, width, context, vocab);
  if (e.experts > 0) {
    m.top_k = e.top_k;
    m.name += str(", ", e.experts, " experts in every ", e.every, ". block, ", e.top_k, " a token");
  }
  return m;
}

void measure(ModelShape& shape, nn::Module& model, const nn::LayerList& list, const Tensor& input,
             const std::function<Variable(const Variable&)>& loss) {
  const auto median = [](std::vector<double>& all) {
    std::nth_element(all.begin(), all.begin() + long(all.size() / 2), all.end());
    return all[all.size() / 2];
  };
  const double samples = double(input.size(0)), tokens = samples * double(shape.context);
  nn::Values values{Variable(input)};
  shape.width = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    const bool last = i + 1 == list.items.size();
    ModelShape::Layer& layer = shape.list.at(i);
    nn::Values in;
    for (const Variable& v : values) in.emplace_back(v.tensor(), is_floating(v.dtype()));
    std::vector<double> forward, backward;
    for (const double start = steady_seconds();
         forward.size() < 3 || (steady_seconds() - start < 0.2 && forward.size() < 20);) {
      const MacCounter counter;
      const double begin = steady_seconds();
      values = list.items[i].forward(in);
      Variable total = last && loss ? loss(values.at(0)) : Variable();
      forward.push_back(steady_seconds() - begin);
      layer.measured = 2 * double(counter.count()) / tokens;
      const double turn = steady_seconds();
      if (total.defined()) {
        if (total.requires_grad()) total.backward();
      } else {
        for (const Variable& v : values)
          if (v.requires_grad()) total = total.defined() ? add(total, sum(v)) : sum(v);
        if (total.defined()) total.backward();
      }
      backward.push_back(steady_seconds() - turn);
      for (Variable v : in) v.clear_grad();
      for (Variable p : model.parameters()) p.clear_grad();
    }
    layer.forward = median(forward) / samples, layer.backward = median(backward) / samples;
    double elements = 0;
    for (const Variable& v : values) elements += double(v.numel());
    layer.out = elements / tokens;
    if (!last) shape.width = std::max(shape.width, int64_t(layer.out));
  }
}

// --- converts a shape to JSON and back ---

namespace {

/// The members of a struct: their names in JSON and their addresses.
using Members = std::vector<std::pair<const char*, Slot>>;

Members members(ModelShape::Parameter& p) {
  return {{"name", &p.name},     {"expert", &p.expert},     {"dim", &p.dim},
          {"blocks", &p.blocks}, {"is_table", &p.is_table}, {"trains", &p.trains}};
}
Members members(ModelShape::Layer& l) {
  return {{"kind", &l.kind},         {"parameters", &l.parameters},   {"multiplied", &l.multiplied},
          {"beside", &l.beside},     {"reduces", &l.reduces},         {"reduces_back", &l.reduces_back},
          {"repeats", &l.repeats},   {"has_experts", &l.has_experts}, {"out", &l.out},
          {"measured", &l.measured}, {"forward", &l.forward},         {"backward", &l.backward}};
}
Members members(ModelShape& m) {
  return {{"name", &m.name},   {"unit", &m.unit},       {"layers", &m.layers},
          {"heads", &m.heads}, {"width", &m.width},     {"context", &m.context},
          {"vocab", &m.vocab}, {"experts", &m.experts}, {"top_k", &m.top_k}};
}

Json write(const Members& all) {
  Json::Object object;
  for (const auto& [name, slot] : all) object.emplace_back(name, json_of(slot));
  return object;
}
void read(const Members& all, const Json& json, const std::string& origin) {
  for (const auto& [name, slot] : all) {
    const Json& value = json.at(name, origin);
    LOCKSTEP_CHECK(assign(slot, value, {}), origin, ": ", name, ": expected ", expected(slot, {}), ", got ",
                   shown(value));
  }
}

}  // namespace

Json to_json(const ModelShape& shape) {
  ModelShape m = shape;
  Json json = write(members(m));
  Json &parameters = json["parameters"] = Json::Array(), &list = json["list"] = Json::Array();
  for (auto& p : m.parameters) {
    Json one = write(members(p));
    one["shape"] = Json::Array(p.shape.begin(), p.shape.end());
    parameters.push_back(std::move(one));
  }
  for (auto& l : m.list) list.push_back(write(members(l)));
  return json;
}

ModelShape model_shape_from(const Json& json, const std::string& origin) {
  ModelShape m;
  read(members(m), json, origin);
  for (const Json& one : json.at("parameters", origin).as_array(origin)) {
    std::vector<int64_t> shape;
    read({{"shape", &shape}}, one, origin);
    auto& p = m.parameters.emplace_back();
    read(members(p), one, origin);
    p.shape = Shape(shape);
  }
  for (const Json& one : json.at("list", origin).as_array(origin)) read(members(m.list.emplace_back()), one, origin);
  return m;
}

}  // namespace lockstep::engine
