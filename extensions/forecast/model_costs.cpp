// Measures the layers of a model, and converts its shape to JSON. See model_costs.h.
#include "extensions/forecast/model_costs.h"

#include <algorithm>

#include "base/clock.h"
#include "engine/config_table.h"
#include "nn/init.h"
#include "parallel/moe/expert_parallel.h"
#include "tensor/flops.h"

namespace lockstep::engine {

using data::Json;

LayerSeconds waits_for_tensor_parallel(const ModelShape& model, const ModelShape::Layer& layer, int ranks,
                                       const LayerSeconds& own, int64_t chunks,
                                       const std::function<double(int64_t part)>& sum) {
  const double all = model.flops(layer, ranks);
  // Returns the fraction of the layer's FLOPs that each of `sums` all-reduces can overlap with: the FLOPs of products
  // with weights sharded along `dim`, divided by the layer's FLOPs and by `sums`.
  const auto share = [&](int64_t dim, int64_t sums) {
    double products = 0;
    for (const int64_t i : layer.multiplied) {
      const ModelShape::Parameter& p = model.parameters[size_t(i)];
      if (p.dim == dim && !p.is_table) products += 2 * double(p.sharded(ranks).numel());
    }
    return all > 0 && sums > 0 ? std::min(1., products / all) / double(sums) : 0;
  };
  const double product = own.forward * share(1, layer.reduces),
               weight = own.backward / 2 * share(0, layer.reduces_back);
  const double part = product > 0 ? double(chunks) : 1, one = sum(int64_t(part));
  return {double(layer.reduces) * (one + (part - 1) * std::max(0., one - product / part)),
          double(layer.reduces_back) * std::max(0., sum(1) - weight)};
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

void measure(ModelShape& shape, nn::Module& model, const nn::LayerList& list, const nn::Values& inputs,
             const std::function<Variable(const Variable&)>& loss) {
  const auto median = [](std::vector<double>& all) {
    std::nth_element(all.begin(), all.begin() + long(all.size() / 2), all.end());
    return all[all.size() / 2];
  };
  const double samples = double(inputs.at(0).size(0)), tokens = samples * double(shape.context);
  nn::Values values = inputs;
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
      const double backward_begin = steady_seconds();
      const bool has_loss = total.defined();
      for (const Variable& v : values)
        if (!has_loss && v.requires_grad()) total = total.defined() ? add(total, sum(v)) : sum(v);
      if (total.defined() && total.requires_grad()) total.backward();
      backward.push_back(steady_seconds() - backward_begin);
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
using Members = std::vector<std::pair<const char*, FieldPointer>>;

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
                   printed(value), "; correct the file");
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
