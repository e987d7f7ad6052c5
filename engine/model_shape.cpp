#include "engine/model_shape.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "autograd/ops.h"
#include "dist/shard.h"
#include "nn/build_empty.h"
#include "parallel/moe/expert_parallel.h"
#include "tensor/check.h"
#include "tensor/flops.h"

namespace lockstep::engine {

using data::Json;

ModelShape::Parameter ModelShape::Parameter::sliced(int ranks) const {
  Parameter part = *this;
  if (dim < 0) return part;
  part.shape[dim] = 0;
  for (const int64_t block : blocks) part.shape[dim] += dist::shard_range(block, ranks, 0).size();
  return part;
}

int64_t ModelShape::numel() const {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.numel();
  return n;
}

double ModelShape::flops(const Layer& layer, int ranks) const {
  const auto products = [&](int among) {
    double sum = 0;
    for (const size_t i : layer.multiplied) {  // of an expert, those times the part of tokens that choose it
      const Parameter& p = parameters[i];
      sum += 2 * double(p.sliced(among).numel()) * (p.expert < 0 ? 1 : double(top_k) / double(experts));
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

/// Walks fields with the cuts that hold for them.
struct Asking {
  ModelShape& m;
  std::map<const void*, size_t> places;  // of parameters
  std::map<const nn::Module*, std::vector<nn::Fields::Entry>> fields;

  void parameters(nn::Module& module, const std::string& prefix, const nn::Cut& above, int64_t expert) {
    nn::Fields f;
    module.fields(f);
    int64_t next = 0;  // expert
    for (const auto& entry : f.entries) {
      const nn::Cut& cut = above.kind == CutKind::none || above.kind == CutKind::tokens ? entry.cut : above;
      const std::string name = prefix + entry.name;
      for (const auto& block : cut.blocks)
        if (block.unit == "heads" || block.unit == "kv_heads")
          m.heads = m.heads == 0 ? block.count : std::min(m.heads, block.count);
      if (entry.parameter && places.emplace(entry.parameter->impl().get(), m.parameters.size()).second) {
        const Shape& shape = entry.parameter->shape();
        const int dim = dim_of(cut, shape);
        m.parameters.push_back({name, shape, expert, dim,
                                dim < 0 ? std::vector<int64_t>{} : blocks_of(cut, shape[dim], name),
                                cut.kind == CutKind::vocabulary || module.table() != nn::Module::Table::none});
      }
      const bool is_expert = entry.cut.kind == CutKind::experts;
      if (entry.module) parameters(*entry.module, name + ".", cut, is_expert ? next : expert);
      m.experts = std::max(m.experts, next += is_expert);
    }
    fields.emplace(&module, std::move(f.entries));
  }

  void layer(ModelShape::Layer& l, nn::Module& module, const nn::Cut& cut) {
    l.beside += module.flops_beside(m.context);
    // Columns and a head add up gradients of what came, rows and a lookup what goes.
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
    l.parameters.push_back(parameter);
    if (multiplies) l.multiplied.push_back(parameter);
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
  const RandomState before = random_state();
  const nn::BuildEmpty scope;
  const auto model = make();
  if (e.experts > 0) moe::add_experts(*model, {.experts = e.experts, .top_k = e.top_k}, e.every);
  set_random_state(before);
  ModelShape m = shape_of(*model, width, context, vocab);
  if (e.experts > 0) {
    m.top_k = e.top_k;
    m.name += str(", ", e.experts, " experts in every ", e.every, ". block, ", e.top_k, " a token");
  }
  return m;
}

void measure(ModelShape& shape, nn::Module& model, const nn::LayerList& list, const Tensor& input,
             const std::function<Variable(const Variable&)>& loss) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
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
    for (const auto start = Clock::now(); forward.size() < 3 || (since(start) < 0.2 && forward.size() < 20);) {
      const MacCounter counter;
      const auto begin = Clock::now();
      values = list.items[i].forward(in);
      Variable total = last && loss ? loss(values.at(0)) : Variable();
      forward.push_back(since(begin));
      layer.measured = 2 * double(counter.count()) / tokens;
      const auto turn = Clock::now();
      if (total.defined()) {
        if (total.requires_grad()) total.backward();
      } else {
        for (const Variable& v : values)
          if (v.requires_grad()) total = total.defined() ? add(total, sum(v)) : sum(v);
        if (total.defined()) total.backward();
      }
      backward.push_back(since(turn));
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

// --- as text ---

namespace {

template <class T> Json list_of(const std::vector<T>& values) {
  Json::Array all;
  for (const T& value : values) all.emplace_back(int64_t(value));
  return all;
}

template <class T> std::vector<T> values_of(const Json& json, const std::string& origin) {
  std::vector<T> all;
  for (const Json& one : json.as_array(origin)) all.push_back(T(one.as_int(origin)));
  return all;
}

}  // namespace

Json to_json(const ModelShape& m) {
  Json::Array parameters, list;
  for (const auto& p : m.parameters)
    parameters.push_back(Json::Object{{"name", p.name},
                                      {"shape", list_of(std::vector<int64_t>(p.shape.begin(), p.shape.end()))},
                                      {"expert", p.expert},
                                      {"dim", p.dim},
                                      {"blocks", list_of(p.blocks)},
                                      {"is_table", p.is_table}});
  for (const auto& l : m.list)
    list.push_back(Json::Object{{"kind", l.kind},
                                {"parameters", list_of(l.parameters)},
                                {"multiplied", list_of(l.multiplied)},
                                {"beside", l.beside},
                                {"reduces", l.reduces},
                                {"reduces_back", l.reduces_back},
                                {"repeats", l.repeats},
                                {"has_experts", l.has_experts},
                                {"out", l.out},
                                {"measured", l.measured},
                                {"forward", l.forward},
                                {"backward", l.backward}});
  return Json::Object{{"name", m.name},   {"unit", m.unit},           {"layers", m.layers}, {"heads", m.heads},
                      {"width", m.width}, {"context", m.context},     {"vocab", m.vocab},   {"experts", m.experts},
                      {"top_k", m.top_k}, {"parameters", parameters}, {"list", list}};
}

ModelShape model_shape_from(const Json& json, const std::string& origin) {
  const auto whole = [&](const Json& of, const char* key) { return of.at(key, origin).as_int(origin); };
  const auto number = [&](const Json& of, const char* key) { return of.at(key, origin).as_number(origin); };
  const auto word = [&](const Json& of, const char* key) { return of.at(key, origin).as_string(origin); };
  const auto flag = [&](const Json& of, const char* key) { return of.at(key, origin).as_bool(origin); };
  ModelShape m{.name = word(json, "name"), .unit = word(json, "unit")};
  for (const Json& p : json.at("parameters", origin).as_array(origin))
    m.parameters.push_back({.name = word(p, "name"),
                            .shape = Shape(values_of<int64_t>(p.at("shape", origin), origin)),
                            .expert = whole(p, "expert"),
                            .dim = int(whole(p, "dim")),
                            .blocks = values_of<int64_t>(p.at("blocks", origin), origin),
                            .is_table = flag(p, "is_table")});
  for (const Json& l : json.at("list", origin).as_array(origin))
    m.list.push_back({.kind = word(l, "kind"),
                      .parameters = values_of<size_t>(l.at("parameters", origin), origin),
                      .multiplied = values_of<size_t>(l.at("multiplied", origin), origin),
                      .beside = number(l, "beside"),
                      .reduces = int(whole(l, "reduces")),
                      .reduces_back = int(whole(l, "reduces_back")),
                      .repeats = flag(l, "repeats"),
                      .has_experts = flag(l, "has_experts"),
                      .out = number(l, "out"),
                      .measured = number(l, "measured"),
                      .forward = number(l, "forward"),
                      .backward = number(l, "backward")});
  m.layers = whole(json, "layers"), m.heads = whole(json, "heads"), m.width = whole(json, "width");
  m.context = whole(json, "context"), m.vocab = whole(json, "vocab");
  m.experts = whole(json, "experts"), m.top_k = whole(json, "top_k");
  return m;
}

}  // namespace lockstep::engine
