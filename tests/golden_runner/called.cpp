// Cases of layers and functions that take masks, positions or options per dimension: transformers, convolutions and
// pooling of volumes, resampling.
#include <functional>

#include "nn/nn.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::nn;

namespace {

using In = const std::vector<Variable>&;
/// The results of a call; backward starts from the first one.
using Outs = std::vector<Variable>;
struct Callee {
  std::unique_ptr<Module> module;
  std::function<Outs(In)> call;
};

template <class L, class Call> Callee with(std::unique_ptr<L> layer, const Call& call) {
  L* const l = layer.get();
  return {std::move(layer), [l, call](In in) { return call(*l, in); }};
}

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

/// One number for all dimensions, or one per dimension.
Dims dims_of(const Case& c, const std::string& key, int rank, int64_t otherwise) {
  if (!c.arg(key)) return Dims::filled(rank, otherwise);
  const Dims d = c.dims(key);
  return d.rank() == 1 ? Dims::filled(rank, d[0]) : d;
}
template <int n> pools::Size<n> size(const Case& c, const std::string& key, int64_t otherwise) {
  const Dims d = dims_of(c, key, n, otherwise);
  if constexpr (n == 1) return d[0];
  else if constexpr (n == 2) return {d[0], d[1]};
  else return {d[0], d[1], d[2]};
}
template <int n> std::optional<pools::Size<n>> stride(const Case& c) {
  return c.arg("stride") ? std::optional(size<n>(c, "stride", 1)) : std::nullopt;
}

template <class L> Outs pooled(L& layer, In in, bool indices) {
  if (!indices) return {layer(in[0])};
  const VariableIndices both = layer.with_indices(in[0]);
  if (!equal(both.values.tensor(), layer(in[0]).tensor())) fail("values differ with and without indices");
  return {both.values, both.indices};
}

using Table = std::map<std::string, std::function<Callee(const Case&)>>;

template <class L, int n> void add_max_pool(Table& t, const std::string& name) {
  t[name] = [](const Case& c) {
    return with(std::make_unique<L>(typename L::Options{size<n>(c, "kernel", 2), stride<n>(c), size<n>(c, "padding", 0),
                                                        size<n>(c, "dilation", 1), c.flag("ceil_mode", false)}),
                [&](L& l, In in) { return pooled(l, in, c.flag("indices", false)); });
  };
}
template <class L, int n> void add_avg_pool(Table& t, const std::string& name) {
  t[name] = [](const Case& c) {
    return with(std::make_unique<L>(typename L::Options{size<n>(c, "kernel", 2), stride<n>(c), size<n>(c, "padding", 0),
                                                        c.flag("ceil_mode", false), c.flag("count_include_pad", true)}),
                [](L& l, In in) { return Outs{l(in[0])}; });
  };
}
template <class L, int n> void add_lp_pool(Table& t, const std::string& name) {
  t[name] = [](const Case& c) {
    return with(std::make_unique<L>(typename L::Options{c.number("p"), size<n>(c, "kernel", 2), stride<n>(c)}),
                [](L& l, In in) { return Outs{l(in[0])}; });
  };
}
template <class L, int n, bool is_max> void add_adaptive(Table& t, const std::string& name) {
  t[name] = [](const Case& c) {
    return with(std::make_unique<L>(typename L::Options{size<n>(c, "output", 1)}), [](L& l, In in) {
      if constexpr (is_max) return pooled(l, in, true);
      else return Outs{l(in[0])};
    });
  };
}
template <class L, int n> void add_unpool(Table& t, const std::string& name) {
  t[name] = [](const Case& c) {
    return with(std::make_unique<L>(typename L::Options{size<n>(c, "kernel", 2), stride<n>(c)}),
                [&](L& l, In in) { return Outs{l(in[0], extra(c, "indices"), c.dims("sizes"))}; });
  };
}

Resampling resampling(const Case& c) {
  const std::string mode = c.text("mode", "nearest");
  return mode == "nearest"         ? Resampling::nearest
         : mode == "nearest_exact" ? Resampling::nearest_exact
         : mode == "linear"        ? Resampling::linear
         : mode == "cubic"         ? Resampling::cubic
                                   : Resampling::area;
}

UnfoldOptions windows(const Case& c) {
  return {.kernel = c.dims("kernel"),
          .dilation = dims_of(c, "dilation", 2, 1),
          .padding = dims_of(c, "padding", 2, 0),
          .stride = dims_of(c, "stride", 2, 1)};
}

void add_functions(Table& t) {
  t["interpolate"] = [](const Case& c) -> Callee {
    InterpolateOptions o{.size = c.dims("size"),
                         .mode = resampling(c),
                         .align_corners = c.flag("align_corners", false),
                         .antialias = c.flag("antialias", false),
                         .recompute_scale = c.flag("recompute_scale", false)};
    if (const Json* scale = c.arg("scale")) {
      if (scale->is_number()) o.scale = {scale->as_number()};
      else
        for (const Json& s : scale->as_array()) o.scale.push_back(s.as_number());
    }
    return {nullptr, [o](In in) { return Outs{Upsample(o)(in[0])}; }};
  };
  t["grid_sample"] = [](const Case& c) -> Callee {
    const std::string padding = c.text("padding", "zeros");
    const GridSampleOptions o{.mode = resampling(c),
                              .padding = padding == "zeros"    ? GridPadding::zeros
                                         : padding == "border" ? GridPadding::border
                                                               : GridPadding::reflection,
                              .align_corners = c.flag("align_corners", false)};
    return {nullptr, [o](In in) { return Outs{grid_sample(in[0], in[1], o)}; }};
  };
  t["affine_grid"] = [](const Case& c) -> Callee {
    return {nullptr, [&](In in) { return Outs{affine_grid(in[0], c.dims("shape"), c.flag("align_corners", false))}; }};
  };
  t["unfold"] = [](const Case& c) -> Callee {
    return {nullptr, [o = windows(c)](In in) { return Outs{Unfold(o)(in[0])}; }};
  };
  t["fold"] = [](const Case& c) -> Callee {
    const UnfoldOptions o = windows(c);
    return {nullptr, [o, &c](In in) {
              return Outs{Fold({c.dims("size"), o.kernel, o.dilation, o.padding, o.stride})(in[0])};
            }};
  };
}

void add_convolutions(Table& t) {
  t["Conv3d"] = [](const Case& c) {
    return with(std::make_unique<Conv3d>(Conv3d::Options{
                    c.integer("in"), c.integer("out"), size<3>(c, "kernel", 3), size<3>(c, "stride", 1),
                    size<3>(c, "padding", 0), size<3>(c, "dilation", 1), c.integer("groups", 1), c.flag("bias", true)}),
                [](Conv3d& l, In in) { return Outs{l(in[0])}; });
  };
  t["ConvTranspose3d"] = [](const Case& c) {
    return with(std::make_unique<ConvTranspose3d>(ConvTranspose3d::Options{
                    c.integer("in"), c.integer("out"), size<3>(c, "kernel", 3), size<3>(c, "stride", 1),
                    size<3>(c, "padding", 0), size<3>(c, "output_padding", 0), size<3>(c, "dilation", 1),
                    c.integer("groups", 1), c.flag("bias", true)}),
                [](ConvTranspose3d& l, In in) { return Outs{l(in[0])}; });
  };
  t["ConvTranspose1d"] = [](const Case& c) {
    return with(
        std::make_unique<ConvTranspose1d>(ConvTranspose1d::Options{
            c.integer("in"), c.integer("out"), c.integer("kernel"), c.integer("stride", 1), c.integer("padding", 0),
            c.integer("output_padding", 0), c.integer("dilation", 1), c.integer("groups", 1), c.flag("bias", true)}),
        [](ConvTranspose1d& l, In in) { return Outs{l(in[0])}; });
  };
  add_max_pool<MaxPool1d, 1>(t, "MaxPool1d");
  add_max_pool<MaxPool2d, 2>(t, "MaxPool2d");
  add_max_pool<MaxPool3d, 3>(t, "MaxPool3d");
  add_avg_pool<AvgPool1d, 1>(t, "AvgPool1d");
  add_avg_pool<AvgPool2d, 2>(t, "AvgPool2d");
  add_avg_pool<AvgPool3d, 3>(t, "AvgPool3d");
  add_lp_pool<LPPool1d, 1>(t, "LPPool1d");
  add_lp_pool<LPPool2d, 2>(t, "LPPool2d");
  add_lp_pool<LPPool3d, 3>(t, "LPPool3d");
  add_adaptive<AdaptiveAvgPool1d, 1, false>(t, "AdaptiveAvgPool1d");
  add_adaptive<AdaptiveAvgPool3d, 3, false>(t, "AdaptiveAvgPool3d");
  add_adaptive<AdaptiveMaxPool1d, 1, true>(t, "AdaptiveMaxPool1d");
  add_adaptive<AdaptiveMaxPool2d, 2, true>(t, "AdaptiveMaxPool2d");
  add_adaptive<AdaptiveMaxPool3d, 3, true>(t, "AdaptiveMaxPool3d");
  add_unpool<MaxUnpool1d, 1>(t, "MaxUnpool1d");
  add_unpool<MaxUnpool2d, 2>(t, "MaxUnpool2d");
  add_unpool<MaxUnpool3d, 3>(t, "MaxUnpool3d");
}

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
  t["EmbeddingBag"] = [](const Case& c) {
    const EmbeddingBag::Options o{c.integer("num"), c.integer("dim"), EmbeddingBag::Mode::max,
                                  c.integer("padding_index", -1), c.flag("last_offset", false)};
    return with(std::make_unique<EmbeddingBag>(o),
                [&](EmbeddingBag& l, In) { return Outs{l(extra(c, "input"), extra(c, "offsets"))}; });
  };
  t["AdaptiveLogSoftmaxWithLoss"] = [](const Case& c) {
    const Dims cutoffs = c.dims("cutoffs");
    const AdaptiveLogSoftmaxWithLoss::Options o{c.integer("in"), c.integer("classes"),
                                                std::vector<int64_t>(cutoffs.begin(), cutoffs.end()),
                                                c.number("div_value", 4), c.flag("head_bias", false)};
    return with(std::make_unique<AdaptiveLogSoftmaxWithLoss>(o), [&](AdaptiveLogSoftmaxWithLoss& l, In in) {
      if (c.flag("log_prob", false)) return Outs{l.log_prob(in[0])};
      const auto [output, loss] = l(in[0], extra(c, "target_"));
      return Outs{output, loss};
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
    add_convolutions(t);
    add_functions(t);
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
