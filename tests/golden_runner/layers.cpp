// Cases of layers and losses.
#include <functional>

#include "nn/nn.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::nn;

namespace {

Pair pair(const Case& c, const std::string& key, int64_t otherwise) {
  if (!c.arg(key)) return otherwise;
  const Dims d = c.dims(key);
  return d.rank() == 1 ? Pair(d[0]) : Pair(d[0], d[1]);
}

template <class L> std::unique_ptr<Module> make() { return std::make_unique<L>(); }
template <class L> std::unique_ptr<Module> make(const typename L::Options& o) { return std::make_unique<L>(o); }

std::unique_ptr<Module> batch_norm(const Case& c, bool two) {
  const BatchNorm::Options o{.channels = c.integer("channels"),
                             .eps = c.number("eps", 1e-5),
                             .momentum = c.arg("momentum") ? std::optional<double>(c.number("momentum")) : std::nullopt,
                             .affine = c.flag("affine", true)};
  return two ? make<BatchNorm2d>(o) : make<BatchNorm1d>(o);
}

/// Calls a layer; one that takes a single input is called once for each. Returns the last result.
Variable call_layer(Module& layer, const std::vector<Variable>& in) {
  const auto& calls = of_extensions().calls;
  if (const auto own = calls.find(layer.kind()); own != calls.end()) return own->second(layer, in);
  if (auto* embedding = dynamic_cast<Embedding*>(&layer)) return (*embedding)(in.back().tensor());
  Variable output;
  for (const Variable& input : in) output = layer.call(input);
  return output;
}

std::map<std::string, std::function<std::unique_ptr<Module>(const Case&)>> make_layers() {
  std::map<std::string, std::function<std::unique_ptr<Module>(const Case&)>> t;
  t["Linear"] = [](const Case& c) { return make<Linear>({c.integer("in"), c.integer("out"), c.flag("bias", true)}); };
  t["Embedding"] = [](const Case& c) {
    return make<Embedding>({c.integer("num"), c.integer("dim"), c.integer("padding_idx", -1)});
  };
  t["LayerNorm"] = [](const Case& c) {
    return make<LayerNorm>({c.dims("shape"), c.number("eps", 1e-5), c.flag("affine", true), c.flag("bias", true)});
  };
  t["RMSNorm"] = [](const Case& c) { return make<RMSNorm>({c.dims("shape")[0], c.number("eps", 1e-6)}); };
  t["BatchNorm1d"] = [](const Case& c) { return batch_norm(c, false); };
  t["BatchNorm2d"] = [](const Case& c) { return batch_norm(c, true); };
  t["Conv1d"] = [](const Case& c) {
    return make<Conv1d>({c.integer("in"), c.integer("out"), c.dims("kernel_size")[0], c.integer("stride", 1),
                         c.integer("padding", 0), c.integer("dilation", 1), c.integer("groups", 1),
                         c.flag("bias", true)});
  };
  t["Conv2d"] = [](const Case& c) {
    return make<Conv2d>({c.integer("in"), c.integer("out"), pair(c, "kernel_size", 1), pair(c, "stride", 1),
                         pair(c, "padding", 0), pair(c, "dilation", 1), c.integer("groups", 1), c.flag("bias", true)});
  };
  t["MaxPool2d"] = [](const Case& c) {
    return make<MaxPool2d>({pair(c, "kernel_size", 2),
                            c.arg("stride") ? std::optional<Pair>(pair(c, "stride", 1)) : std::nullopt,
                            pair(c, "padding", 0), pair(c, "dilation", 1), c.flag("ceil_mode", false)});
  };
  t["GELU"] = [](const Case& c) {
    return make<GELU>({c.text("approximate", "none") == "tanh" ? Gelu::tanh : Gelu::erf});
  };
  t["Identity"] = [](const Case&) { return make<Identity>(); };
  t["MultiheadAttention"] = [](const Case& c) {
    return make<MultiHeadAttention>({.embed = c.integer("embed"),
                                     .heads = c.integer("heads"),
                                     .causal = c.flag("causal", false),
                                     .bias = c.flag("bias", true)});
  };
  return t;
}

CrossEntropyOptions cross_entropy_options(const Case& c) {
  CrossEntropyOptions o{.ignore_index = c.integer("ignore_index", -100),
                        .label_smoothing = c.number("label_smoothing", 0),
                        .reduction = c.reduction()};
  if (const Json* weight = c.arg("weight")) {
    std::vector<float> values;
    for (const Json& w : weight->as_array()) values.push_back(float(w.as_number()));
    o.weight = Tensor::from(values, {int64_t(values.size())});
  }
  return o;
}

using Loss = std::function<Variable(const std::vector<Variable>&, const Case&)>;
std::map<std::string, Loss> make_losses() {
  using In = const std::vector<Variable>&;
  std::map<std::string, Loss> t;
  t["CrossEntropy"] = [](In in, const Case& c) { return cross_entropy(in[0], in[1], cross_entropy_options(c)); };
  t["MSE"] = [](In in, const Case& c) { return mse_loss(in[0], in[1], c.reduction()); };
  t["scaled_dot_product_attention"] = [](In in, const Case& c) {
    return attention(in[0], in[1], in[2], {},
                     AttentionArgs{.scale = c.number("scale", 0), .causal = c.flag("causal", false)});
  };
  return t;
}

/// The file uses PyTorch's names of attention's packed projection.
std::string our_name(std::string name) {
  if (name == "in_proj_weight") return "in_proj.weight";
  if (name == "in_proj_bias") return "in_proj.bias";
  return name;
}

}  // namespace

void run_layer(const Case& c, Report& report) {
  static const auto layers = [] {
    auto all = make_layers();
    all.insert(of_extensions().layers.begin(), of_extensions().layers.end());
    return all;
  }();
  static const auto losses = make_losses();
  const std::string kind = c.json().at("layer").as_string();
  std::vector<Variable> inputs;
  for (int i = 0; c.has(str("in", i)); ++i)
    inputs.emplace_back(c.tensor(str("in", i)).clone(), is_floating(c.tensor(str("in", i)).dtype()));

  std::unique_ptr<Module> layer;
  Variable output;
  if (const auto found = layers.find(kind); found != layers.end()) {
    layer = found->second(c);
    State state;
    for (const char* prefix : {"param/", "buf/"}) {
      for (const std::string& what : c.names(prefix))
        state.emplace_back(our_name(what.substr(what.find('/') + 1)), c.tensor(what));
    }
    layer->load_state(state);
    layer->train(!c.json().find("train") || c.json().at("train").as_bool());
    if (auto* attention = dynamic_cast<MultiHeadAttention*>(layer.get()); attention && c.has("out1"))
      report.compare("out1", attention->weights(inputs[0]), c.tensor("out1"));
    output = call_layer(*layer, inputs);
  } else {
    const auto loss = losses.find(kind);
    LOCKSTEP_CHECK(loss != losses.end(), "unknown layer '", kind, "'");
    output = loss->second(inputs, c);
  }
  report.compare("out0", output.tensor(), c.tensor("out0"));
  if (!report.ok() || !c.has("gout")) return;
  output.backward(c.tensor("gout"));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!c.has(str("grad_in", i))) continue;
    const Tensor& grad = inputs[i].grad();
    report.compare(str("grad_in", i), grad.defined() ? grad : zeros_like(inputs[i].tensor()),
                   c.tensor(str("grad_in", i)));
  }
  if (!layer) return;
  std::map<std::string, Variable> parameters;
  for (auto& p : layer->named_parameters()) parameters[p.name] = p.variable;
  for (const std::string& what : c.names("grad/"))
    report.compare(what, parameters.at(our_name(what.substr(5))).grad(), c.tensor(what));
  for (auto& buffer : layer->named_buffers()) {
    if (c.has("buf_after/" + buffer.name))
      report.compare("buf_after/" + buffer.name, buffer.tensor, c.tensor("buf_after/" + buffer.name));
  }
}

}  // namespace golden
