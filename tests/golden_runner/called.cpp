// Cases of layers that take masks: transformers.
#include <functional>

#include "nn/nn.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::nn;

namespace {

using In = const Inputs&;
/// The results of a call; backward starts from the first one.
using Outs = Outputs;

Tensor extra(const Case& c, const std::string& name) {
  return c.has("extra/" + name) ? c.tensor("extra/" + name) : Tensor();
}

AttentionMasks masks(const Case& c, const char* mask, const char* padding, const char* causal) {
  return {.mask = extra(c, mask), .padding = extra(c, padding), .causal = c.flag(causal, false)};
}

TransformerOptions transformer(const Case& c) {
  return {.width = c.integer("width"),
          .heads = c.integer("heads"),
          .inner = c.integer("inner"),
          .dropout = 0,
          .activation = c.text("activation", "relu") == "relu" ? Activation::relu : Activation::gelu_erf,
          .batch_first = c.flag("batch_first", false),
          .norm_first = c.flag("norm_first", false),
          .bias = c.flag("bias", true)};
}
DecoderMasks decoder_masks(const Case& c) {
  return {.target = masks(c, "tgt_mask", "tgt_key_padding_mask", "target_causal"),
          .memory = masks(c, "memory_mask", "memory_key_padding_mask", "memory_causal")};
}

using Table = std::map<std::string, std::function<Callee(const Case&)>>;

void add_transformers(Table& t) {
  t["MultiHeadAttention"] = [](const Case& c) {
    const MultiHeadAttention::Options o{.embed = c.integer("embed"),
                                        .heads = c.integer("heads"),
                                        .causal = false,
                                        .bias = c.flag("bias", true),
                                        .cross = c.flag("cross", false)};
    return with(std::make_unique<MultiHeadAttention>(o), [&](MultiHeadAttention& l, In in) {
      const std::string wanted = c.text("weights", "none");
      const AttentionOutput out = l(in[0], in.size() > 1 ? in[1] : in[0], in.size() > 1 ? in[2] : in[0],
                                    masks(c, "attn_mask", "key_padding_mask", "causal"),
                                    wanted == "none"   ? AttentionWeights::none
                                    : wanted == "mean" ? AttentionWeights::mean
                                                       : AttentionWeights::of_heads);
      return out.weights.defined() ? Outs{out.output, out.weights} : Outs{out.output};
    });
  };
  t["TransformerEncoderLayer"] = [](const Case& c) {
    return with(std::make_unique<TransformerEncoderLayer>(transformer(c)), [&](TransformerEncoderLayer& l, In in) {
      return Outs{l(in[0], masks(c, "src_mask", "src_key_padding_mask", "source_causal"))};
    });
  };
  t["TransformerDecoderLayer"] = [](const Case& c) {
    return with(std::make_unique<TransformerDecoderLayer>(transformer(c)),
                [&](TransformerDecoderLayer& l, In in) { return Outs{l(in[0], in[1], decoder_masks(c))}; });
  };
  t["TransformerEncoder"] = [](const Case& c) {
    const TransformerEncoder::Options o{transformer(c), c.integer("layers"), c.flag("norm", false)};
    return with(std::make_unique<TransformerEncoder>(o), [&](TransformerEncoder& l, In in) {
      return Outs{l(in[0], masks(c, "mask", "src_key_padding_mask", "source_causal"))};
    });
  };
  t["TransformerDecoder"] = [](const Case& c) {
    const TransformerDecoder::Options o{transformer(c), c.integer("layers"), c.flag("norm", false)};
    return with(std::make_unique<TransformerDecoder>(o),
                [&](TransformerDecoder& l, In in) { return Outs{l(in[0], in[1], decoder_masks(c))}; });
  };
  t["Transformer"] = [](const Case& c) {
    const TransformerOptions one = transformer(c);
    const Transformer::Options o{.width = one.width,
                                 .heads = one.heads,
                                 .encoder_layers = c.integer("encoder_layers"),
                                 .decoder_layers = c.integer("decoder_layers"),
                                 .inner = one.inner,
                                 .dropout = 0,
                                 .activation = one.activation,
                                 .batch_first = one.batch_first,
                                 .norm_first = one.norm_first,
                                 .bias = one.bias};
    return with(std::make_unique<Transformer>(o), [&](Transformer& l, In in) {
      const DecoderMasks of_decoder = decoder_masks(c);
      return Outs{l(in[0], in[1],
                    {.source = masks(c, "src_mask", "src_key_padding_mask", "source_causal"),
                     .target = of_decoder.target,
                     .memory = of_decoder.memory})};
    });
  };
}

/// Translates PyTorch's name of a packed attention projection, which has no dot.
std::string name_here(std::string name) {
  const size_t at = name.find("in_proj_");
  if (at != std::string::npos) name[at + 7] = '.';
  return name;
}

}  // namespace

void run_called(const Case& c, Report& report) {
  static const Table table = [] {
    Table t;
    add_transformers(t);
    t.insert(of_extensions().called.begin(), of_extensions().called.end());
    return t;
  }();
  const auto found = table.find(c.json().at("called").as_string());
  LOCKSTEP_CHECK(found != table.end(), "unknown call");
  Callee callee = found->second(c);
  std::map<std::string, Variable> parameters;
  if (callee.module) {
    State state;
    for (const std::string& what : c.names("param/")) state.emplace_back(name_here(what.substr(6)), c.tensor(what));
    callee.module->load_state(state);
    for (auto& p : callee.module->named_parameters()) parameters[p.name] = p.variable;
  }
  std::vector<Variable> inputs;
  for (int i = 0; c.has(str("in", i)); ++i) inputs.emplace_back(c.tensor(str("in", i)).clone(), true);
  const Outs outs = callee.call(inputs);
  for (size_t i = 0; i < outs.size(); ++i) report.compare(str("out", i), outs[i].tensor(), c.tensor(str("out", i)));
  if (!report.ok()) return;
  outs[0].backward(c.tensor("gout"));
  const auto compare = [&](const std::string& what, const Variable& x) {
    report.compare(what, x.grad().defined() ? x.grad() : zeros_like(x.tensor()), c.tensor(what));
  };
  for (size_t i = 0; i < inputs.size(); ++i) compare(str("grad_in", i), inputs[i]);
  for (const std::string& what : c.names("grad/")) compare(what, parameters.at(name_here(what.substr(5))));
}

}  // namespace golden
