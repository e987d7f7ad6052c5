// The golden cases of functions, losses and layers that few models need.

#include "extensions/layers/layers.h"
#include "nn/conv.h"
#include "nn/linear.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::nn;

namespace {

using In = const Inputs&;
using Of = const Case&;

template <class Fn> Run unary(Fn fn) {
  return [fn](In in, Of) { return Outputs{fn(in[0])}; };
}
template <class Fn> Run binary(Fn fn) {
  return [fn](In in, Of) { return Outputs{fn(in[0], in[1])}; };
}
Outputs with_indices(const VariableIndices& r) { return {r.values, r.indices}; }

/// Functions of composed.h.
void add_composed(std::map<std::string, Run>& t) {
  t["cdist"] = binary([](const Variable& a, const Variable& b) { return cdist(a, b); });
  t["take_along_dim"] = [](In in, Of c) { return Outputs{take_along_dim(in[0], in[1].tensor(), c.integer("dim"))}; };
  t["logcumsumexp"] = [](In in, Of c) { return Outputs{logcumsumexp(in[0], c.integer("dim"))}; };
  t["quantile"] = [](In in, Of c) {
    const std::optional<int64_t> dim = c.arg("dim") ? std::optional<int64_t>(c.integer("dim")) : std::nullopt;
    const std::map<std::string, Interpolation> kinds{{"linear", Interpolation::linear},
                                                     {"lower", Interpolation::lower},
                                                     {"higher", Interpolation::higher},
                                                     {"nearest", Interpolation::nearest},
                                                     {"midpoint", Interpolation::midpoint}};
    return Outputs{quantile(in[0], c.number("q"), dim, c.flag("keepdim", false), kinds.at(c.text("how", "")))};
  };
  t["median"] = unary([](const Variable& x) { return median(x); });
  t["median_dim"] = [](In in, Of c) { return with_indices(median(in[0], c.integer("dim"), c.flag("keepdim", false))); };
  t["meshgrid"] = [](In in, Of c) { return Outputs(meshgrid(in, c.flag("xy", false))); };
}

/// Functions of composed.h and search.h that pick elements.
void add_picking(std::map<std::string, Run>& t) {
  t["masked_select"] = [](In in, Of) { return Outputs{masked_select(in[0], in[1].tensor().to(boolean))}; };
  t["index_put"] = [](In in, Of c) {  // inputs: x, values, then an index for each letter of "how"
    std::vector<Tensor> indices;
    size_t next = 2;
    for (const char kind : c.text("how", "")) {
      const Tensor index = kind == ':' ? Tensor() : in.at(next++).tensor();
      indices.push_back(kind == 'm' ? index.to(boolean) : index);
    }
    return Outputs{index_put(in[0], indices, in[1], c.flag("accumulate", false))};
  };
  t["msort"] = unary([](const Variable& x) { return msort(x); });
  t["kthvalue"] = [](In in, Of c) {
    return with_indices(kthvalue(in[0], c.integer("k"), c.integer("dim", -1), c.flag("keepdim", false)));
  };
  t["searchsorted"] = [](In in, Of c) {
    return Outputs{searchsorted(in[0].tensor(), in[1].tensor(),
                                {c.flag("right", false), in.size() > 2 ? in[2].tensor() : Tensor()})};
  };
  t["bucketize"] = [](In in, Of c) {
    return Outputs{bucketize(in[0].tensor(), in[1].tensor(), c.flag("right", false))};
  };
  t["bincount"] = [](In in, Of c) {
    return Outputs{bincount(in[0].tensor(), in.size() > 1 ? in[1].tensor() : Tensor(), c.integer("minlength", 0))};
  };
  t["histc"] = [](In in, Of c) {
    return Outputs{histc(in[0].tensor(), c.integer("bins"), c.number("min"), c.number("max"))};
  };
  for (const char* name : {"unique", "unique_consecutive"})
    t[name] = [runs = std::string(name) != "unique"](In in, Of c) {
      const Tensor& x = in[0].tensor();
      const bool full = !c.arg("dim");
      const Unique u = full   ? runs ? unique_consecutive(x) : unique(x)
                         : runs ? unique_consecutive(x, c.integer("dim"))
                              : unique(x, c.integer("dim"));
      return Outputs{u.values, u.inverse, u.counts};
    };
  t["nonzero"] = [](In in, Of) { return Outputs{nonzero(in[0].tensor())}; };
}

void add_group_norm(std::map<std::string, Run>& t) {
  t["group_norm"] = [](In in, Of c) {
    const auto optional = [&](size_t i) { return i < in.size() ? in[i] : Variable(); };
    return Outputs{group_norm(in[0], c.integer("groups"), optional(1), optional(2), c.number("eps"))};
  };
}

void add_losses(std::map<std::string, Run>& t) {
  const auto add = [&](const char* name, auto loss) {
    t[name] = [loss](In in, Of c) { return Outputs{loss(in, c, c.reduction())}; };
  };
  const auto weight = [](In in) { return in.size() > 2 ? in[2].tensor() : Tensor(); };
  add("bce_loss", [=](auto& in, auto&, auto r) { return bce_loss(in[0], in[1], weight(in), r); });
  add("poisson_nll_loss", [](auto& in, auto& c, auto r) {
    return poisson_nll_loss(in[0], in[1], {c.flag("log_input", true), c.flag("full", false), c.number("eps", 1e-8)}, r);
  });
  add("gaussian_nll_loss", [](auto& in, auto& c, auto r) {
    return gaussian_nll_loss(in[0], in[1], in[2], {c.flag("full", false), c.number("eps", 1e-6)}, r);
  });
  add("sigmoid_focal_loss", [](auto& in, auto& c, auto r) {
    return sigmoid_focal_loss(in[0], in[1], {c.number("alpha", 0.25), c.number("gamma", 2)}, r);
  });
  add("soft_margin_loss", [](auto& in, auto&, auto r) { return soft_margin_loss(in[0], in[1].tensor(), r); });
  add("hinge_embedding_loss",
      [](auto& in, auto& c, auto r) { return hinge_embedding_loss(in[0], in[1].tensor(), c.number("margin", 1), r); });
  add("margin_ranking_loss", [](auto& in, auto& c, auto r) {
    return margin_ranking_loss(in[0], in[1], in[2].tensor(), c.number("margin", 0), r);
  });
  add("cosine_embedding_loss", [](auto& in, auto& c, auto r) {
    return cosine_embedding_loss(in[0], in[1], in[2].tensor(), c.number("margin", 0), r);
  });
  add("multi_margin_loss", [=](auto& in, auto& c, auto r) {
    return multi_margin_loss(in[0], in[1].tensor(), {int(c.integer("p", 1)), c.number("margin", 1), weight(in)}, r);
  });
  add("multilabel_margin_loss",
      [](auto& in, auto&, auto r) { return multilabel_margin_loss(in[0], in[1].tensor(), r); });
  add("multilabel_soft_margin_loss",
      [=](auto& in, auto&, auto r) { return multilabel_soft_margin_loss(in[0], in[1], weight(in), r); });
  add("pairwise_distance", [](auto& in, auto& c, auto) {
    return pairwise_distance(in[0], in[1], c.number("p", 2), c.number("eps", 1e-6), c.flag("keepdim", false));
  });
  add("triplet_margin_loss", [](auto& in, auto& c, auto r) {
    const TripletOptions o{c.number("margin", 1), c.number("p", 2), c.number("eps", 1e-6), c.flag("swap", false)};
    return triplet_margin_loss(in[0], in[1], in[2], o, r);
  });
  add("triplet_margin_with_distance_loss", [](auto& in, auto& c, auto r) {
    TripletDistanceOptions o{{}, c.number("margin", 1), c.flag("swap", false)};
    if (c.flag("squares", false))
      o.distance = [](const Variable& x, const Variable& y) { return sum(square(x - y), {-1}); };
    return triplet_margin_with_distance_loss(in[0], in[1], in[2], o, r);
  });
}

void add_adaptive(Functions& functions) {
  functions.called["AdaptiveLogSoftmaxWithLoss"] = [](const Case& c) {
    const Dims cutoffs = c.dims("cutoffs");
    const AdaptiveLogSoftmaxWithLoss::Options o{c.integer("in"), c.integer("classes"),
                                                std::vector<int64_t>(cutoffs.begin(), cutoffs.end()),
                                                c.number("div_value", 4), c.flag("head_bias", false)};
    return with(std::make_unique<AdaptiveLogSoftmaxWithLoss>(o), [&](AdaptiveLogSoftmaxWithLoss& l, In in) {
      if (c.flag("log_prob", false)) return Outputs{l.log_prob(in[0])};
      const auto [output, loss] = l(in[0], c.tensor("extra/target_"));
      return Outputs{output, loss};
    });
  };
}

template <class L> std::unique_ptr<Module> make() { return std::make_unique<L>(); }
template <class L> std::unique_ptr<Module> make(const typename L::Options& o) { return std::make_unique<L>(o); }
template <class L> Variable call(Module& layer, In in) { return dynamic_cast<L&>(layer)(in[0], in[1]); }

void add_similarity(Functions& functions) {
  auto& t = functions.layers;
  t["Bilinear"] = [](const Case& c) {
    return make<Bilinear>({c.integer("in1"), c.integer("in2"), c.integer("out"), c.flag("bias", true)});
  };
  t["CosineSimilarity"] = [](const Case& c) { return make<CosineSimilarity>({c.integer("dim"), c.number("eps")}); };
  t["PairwiseDistance"] = [](const Case& c) {
    return make<PairwiseDistance>({.p = c.number("p"), .keepdim = c.flag("keepdim", false)});
  };
  functions.calls["Bilinear"] = call<Bilinear>;
  functions.calls["CosineSimilarity"] = call<CosineSimilarity>;
  functions.calls["PairwiseDistance"] = call<PairwiseDistance>;
}

/// Layers without options.
template <class... L> void add_plain(Functions& functions) {
  ((functions.layers[L().kind()] = [](const Case&) { return make<L>(); }), ...);
}

void add_activations(Functions& functions) {
  auto& t = functions.layers;
  add_plain<Tanhshrink, Softsign, SELU, Softmax2d, AlphaDropout, ReLU6, Hardsigmoid, LogSigmoid, Dropout1d>(functions);
  t["CELU"] = [](const Case& c) { return make<CELU>({c.number("alpha", CELU().alpha)}); };
  t["Hardtanh"] = [](const Case& c) {
    return make<Hardtanh>({c.number("low", Hardtanh().o.low), c.number("high", Hardtanh().o.high)});
  };
  t["Hardshrink"] = [](const Case& c) { return make<Hardshrink>({c.number("lambda", Hardshrink().lambda)}); };
  t["Softshrink"] = [](const Case& c) { return make<Softshrink>({c.number("lambda", Softshrink().lambda)}); };
  t["Threshold"] = [](const Case& c) { return make<Threshold>({c.number("threshold"), c.number("value")}); };
  t["Softmin"] = [](const Case& c) { return make<Softmin>({c.integer("dim")}); };
}

InstanceNorm::Options instance_norm(const Case& c) {
  const InstanceNorm::Options o{c.integer("channels")};
  return {o.channels, c.number("eps", o.eps), c.number("momentum", o.momentum), c.flag("affine", o.affine),
          c.flag("track", o.track)};
}

/// Applies `change` to the layer that the case names in "of".
template <class Change> std::unique_ptr<Module> of_kind(const Case& c, Change change) {
  const auto moved = [](auto layer) -> std::unique_ptr<Module> {
    return std::make_unique<decltype(layer)>(std::move(layer));
  };
  if (c.text("of", "") == "Linear") return moved(change(Linear({c.integer("in"), c.integer("out")})));
  return moved(change(Conv2d({c.integer("in"), c.integer("out")})));
}

/// Layers of activations.h, norm.h and shape_layers.h.
void add_more_layers(Functions& functions) {
  auto& t = functions.layers;
  t["GroupNorm"] = [](const Case& c) {
    return make<GroupNorm>({c.integer("groups"), c.integer("channels"), c.number("eps", 1e-5), c.flag("affine", true)});
  };
  t["PReLU"] = [](const Case& c) { return make<PReLU>({c.integer("channels", 1)}); };
  t["RReLU"] = [](const Case& c) {
    return make<RReLU>({c.number("lower", RReLU().o.lower), c.number("upper", RReLU().o.upper)});
  };
  t["GLU"] = [](const Case& c) { return make<GLU>({c.integer("dim", GLU().dim)}); };
  t["LogSoftmax"] = [](const Case& c) { return make<LogSoftmax>({c.integer("dim")}); };
  t["Unflatten"] = [](const Case& c) { return make<Unflatten>({c.integer("dim"), c.dims("shape")}); };
  t["PixelShuffle"] = [](const Case& c) { return make<PixelShuffle>({c.integer("factor")}); };
  t["PixelUnshuffle"] = [](const Case& c) { return make<PixelUnshuffle>({c.integer("factor")}); };
  t["ChannelShuffle"] = [](const Case& c) { return make<ChannelShuffle>({c.integer("groups")}); };
  t["InstanceNorm1d"] = [](const Case& c) { return make<InstanceNorm1d>(instance_norm(c)); };
  t["InstanceNorm2d"] = [](const Case& c) { return make<InstanceNorm2d>(instance_norm(c)); };
  t["InstanceNorm3d"] = [](const Case& c) { return make<InstanceNorm3d>(instance_norm(c)); };
  t["WeightNorm"] = [](const Case& c) {
    return of_kind(c, [&](auto layer) { return weight_norm(std::move(layer), {c.integer("dim", 0)}); });
  };
  t["SpectralNorm"] = [](const Case& c) {
    const SpectralNorm::Options o{.iterations = c.integer("iterations", 1), .dim = c.integer("dim", 0)};
    return of_kind(c, [&](auto layer) { return spectral_norm(std::move(layer), o); });
  };
}

void add_embedding_bag(Functions& functions) {
  functions.layers["EmbeddingBag"] = [](const Case& c) {
    using Mode = EmbeddingBag::Mode;
    return make<EmbeddingBag>({c.integer("num"), c.integer("dim"),
                               c.text("mode", "mean") == "sum" ? Mode::sum : Mode::mean, c.integer("padding_index", -1),
                               c.flag("last_offset", false)});
  };
  functions.calls["EmbeddingBag"] = [](Module& layer, In in) {
    const bool has_weights = is_floating(in.back().dtype()), has_offsets = in.size() > 1 && !is_floating(in[1].dtype());
    return dynamic_cast<EmbeddingBag&>(layer)(in[0].tensor(), has_offsets ? in[1].tensor() : Tensor(),
                                              has_weights ? in.back() : Variable());
  };
  functions.called["EmbeddingBag"] = [](const Case& c) {
    const EmbeddingBag::Options o{c.integer("num"), c.integer("dim"), EmbeddingBag::Mode::max,
                                  c.integer("padding_index", -1), c.flag("last_offset", false)};
    return with(std::make_unique<EmbeddingBag>(o), [&](EmbeddingBag& l, In) {
      return Outputs{l(c.tensor("extra/input"), c.has("extra/offsets") ? c.tensor("extra/offsets") : Tensor())};
    });
  };
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

void add_transformers(Functions& functions) {
  auto& t = functions.called;
  t["MultiHeadAttention"] = [](const Case& c) {
    const MaskedAttention::Options o{.embed = c.integer("embed"),
                                     .heads = c.integer("heads"),
                                     .bias = c.flag("bias", true),
                                     .cross = c.flag("cross", false)};
    return with(std::make_unique<MaskedAttention>(o), [&](MaskedAttention& l, In in) {
      const std::string wanted = c.text("weights", "none");
      const AttentionOutput out = l(in[0], in.size() > 1 ? in[1] : in[0], in.size() > 1 ? in[2] : in[0],
                                    masks(c, "attn_mask", "key_padding_mask", "causal"),
                                    wanted == "none"   ? AttentionWeights::none
                                    : wanted == "mean" ? AttentionWeights::mean
                                                       : AttentionWeights::of_heads);
      return out.weights.defined() ? Outputs{out.output, out.weights} : Outputs{out.output};
    });
  };
  t["TransformerEncoderLayer"] = [](const Case& c) {
    return with(std::make_unique<TransformerEncoderLayer>(transformer(c)), [&](TransformerEncoderLayer& l, In in) {
      return Outputs{l(in[0], masks(c, "src_mask", "src_key_padding_mask", "source_causal"))};
    });
  };
  t["TransformerDecoderLayer"] = [](const Case& c) {
    return with(std::make_unique<TransformerDecoderLayer>(transformer(c)),
                [&](TransformerDecoderLayer& l, In in) { return Outputs{l(in[0], in[1], decoder_masks(c))}; });
  };
  t["TransformerEncoder"] = [](const Case& c) {
    const TransformerEncoder::Options o{transformer(c), c.integer("layers"), c.flag("norm", false)};
    return with(std::make_unique<TransformerEncoder>(o), [&](TransformerEncoder& l, In in) {
      return Outputs{l(in[0], masks(c, "mask", "src_key_padding_mask", "source_causal"))};
    });
  };
  t["TransformerDecoder"] = [](const Case& c) {
    const TransformerDecoder::Options o{transformer(c), c.integer("layers"), c.flag("norm", false)};
    return with(std::make_unique<TransformerDecoder>(o),
                [&](TransformerDecoder& l, In in) { return Outputs{l(in[0], in[1], decoder_masks(c))}; });
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
      return Outputs{l(in[0], in[1],
                       {.source = masks(c, "src_mask", "src_key_padding_mask", "source_causal"),
                        .target = of_decoder.target,
                        .memory = of_decoder.memory})};
    });
  };
}

}  // namespace

void add_layers(Functions& functions) {
  add_composed(functions.ops);
  add_picking(functions.ops);
  add_losses(functions.ops);
  add_group_norm(functions.ops);
  add_adaptive(functions);
  add_similarity(functions);
  add_activations(functions);
  add_more_layers(functions);
  add_embedding_bag(functions);
  add_transformers(functions);
}

}  // namespace golden
