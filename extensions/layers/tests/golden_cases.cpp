// The golden cases of functions, losses and layers that few models need.
#include <cmath>

#include "extensions/layers/layers.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::nn;

namespace {

template <class Fn> Run unary(Fn fn) {
  return [fn](const Inputs& in, const Case&) { return Outputs{fn(in[0])}; };
}
template <class Fn> Run binary(Fn fn) {
  return [fn](const Inputs& in, const Case&) { return Outputs{fn(in[0], in[1])}; };
}
Outputs with_indices(const VariableIndices& r) { return {r.values, r.indices}; }

Reduction reduction_of(const Case& c) {
  const std::string text = c.text("reduction", "mean");
  return text == "none" ? Reduction::none : text == "sum" ? Reduction::sum : Reduction::mean;
}

/// Functions of composed.h.
void add_composed(std::map<std::string, Run>& t) {
  t["cdist"] = binary([](const Variable& a, const Variable& b) { return cdist(a, b); });
  t["take_along_dim"] = [](const Inputs& in, const Case& c) {
    return Outputs{take_along_dim(in[0], in[1].tensor(), c.integer("dim"))};
  };
  t["logcumsumexp"] = [](const Inputs& in, const Case& c) { return Outputs{logcumsumexp(in[0], c.integer("dim"))}; };
  t["quantile"] = [](const Inputs& in, const Case& c) {
    const std::optional<int64_t> dim = c.arg("dim") ? std::optional<int64_t>(c.integer("dim")) : std::nullopt;
    const std::map<std::string, Interpolation> kinds{{"linear", Interpolation::linear},
                                                     {"lower", Interpolation::lower},
                                                     {"higher", Interpolation::higher},
                                                     {"nearest", Interpolation::nearest},
                                                     {"midpoint", Interpolation::midpoint}};
    return Outputs{quantile(in[0], c.number("q"), dim, c.flag("keepdim", false), kinds.at(c.text("how", "")))};
  };
  t["median"] = unary([](const Variable& x) { return median(x); });
  t["median_dim"] = [](const Inputs& in, const Case& c) {
    return with_indices(median(in[0], c.integer("dim"), c.flag("keepdim", false)));
  };
  t["meshgrid"] = [](const Inputs& in, const Case& c) { return Outputs(meshgrid(in, c.flag("xy", false))); };
}

/// Functions of composed.h and search.h that pick elements.
void add_picking(std::map<std::string, Run>& t) {
  t["masked_select"] = [](const Inputs& in, const Case&) {
    return Outputs{masked_select(in[0], in[1].tensor().to(boolean))};
  };
  t["index_put"] = [](const Inputs& in, const Case& c) {  // inputs: x, values, then an index for each letter of "how"
    std::vector<Tensor> indices;
    size_t next = 2;
    for (const char kind : c.text("how", "")) {
      const Tensor index = kind == ':' ? Tensor() : in.at(next++).tensor();
      indices.push_back(kind == 'm' ? index.to(boolean) : index);
    }
    return Outputs{index_put(in[0], indices, in[1], c.flag("accumulate", false))};
  };
  t["msort"] = unary([](const Variable& x) { return msort(x); });
  t["kthvalue"] = [](const Inputs& in, const Case& c) {
    return with_indices(kthvalue(in[0], c.integer("k"), c.integer("dim", -1), c.flag("keepdim", false)));
  };
  t["searchsorted"] = [](const Inputs& in, const Case& c) {
    return Outputs{searchsorted(in[0].tensor(), in[1].tensor(),
                                {c.flag("right", false), in.size() > 2 ? in[2].tensor() : Tensor()})};
  };
  t["bucketize"] = [](const Inputs& in, const Case& c) {
    return Outputs{bucketize(in[0].tensor(), in[1].tensor(), c.flag("right", false))};
  };
  t["bincount"] = [](const Inputs& in, const Case& c) {
    return Outputs{bincount(in[0].tensor(), in.size() > 1 ? in[1].tensor() : Tensor(), c.integer("minlength", 0))};
  };
  t["histc"] = [](const Inputs& in, const Case& c) {
    return Outputs{histc(in[0].tensor(), c.integer("bins"), c.number("min"), c.number("max"))};
  };
  for (const char* name : {"unique", "unique_consecutive"})
    t[name] = [runs = std::string(name) != "unique"](const Inputs& in, const Case& c) {
      const Tensor& x = in[0].tensor();
      const bool whole = !c.arg("dim");
      const Unique u = whole  ? runs ? unique_consecutive(x) : unique(x)
                        : runs ? unique_consecutive(x, c.integer("dim"))
                              : unique(x, c.integer("dim"));
      return Outputs{u.values, u.inverse, u.counts};
    };
  t["nonzero"] = [](const Inputs& in, const Case&) { return Outputs{nonzero(in[0].tensor())}; };
}

void add_losses(std::map<std::string, Run>& t) {
  const auto add = [&](const char* name, auto loss) {
    t[name] = [loss](const Inputs& in, const Case& c) { return Outputs{loss(in, c, reduction_of(c))}; };
  };
  const auto weight = [](const Inputs& in) { return in.size() > 2 ? in[2].tensor() : Tensor(); };
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
    return with(std::make_unique<AdaptiveLogSoftmaxWithLoss>(o), [&](AdaptiveLogSoftmaxWithLoss& l, const Inputs& in) {
      if (c.flag("log_prob", false)) return Outputs{l.log_prob(in[0])};
      const auto [output, loss] = l(in[0], c.tensor("extra/target_"));
      return Outputs{output, loss};
    });
  };
}

template <class L, class... Options> std::unique_ptr<Module> make(const Options&... o) {
  return std::make_unique<L>(o...);
}
template <class L> Variable call(Module& layer, const Inputs& in) { return dynamic_cast<L&>(layer)(in[0], in[1]); }

void add_similarity(Functions& functions) {
  auto& t = functions.layers;
  t["Bilinear"] = [](const Case& c) {
    return make<Bilinear>(
        Bilinear::Options{c.integer("in1"), c.integer("in2"), c.integer("out"), c.flag("bias", true)});
  };
  t["CosineSimilarity"] = [](const Case& c) {
    return make<CosineSimilarity>(CosineSimilarity::Options{c.integer("dim"), c.number("eps")});
  };
  t["PairwiseDistance"] = [](const Case& c) {
    return make<PairwiseDistance>(PairwiseDistance::Options{.p = c.number("p"), .keepdim = c.flag("keepdim", false)});
  };
  functions.calls["Bilinear"] = call<Bilinear>;
  functions.calls["CosineSimilarity"] = call<CosineSimilarity>;
  functions.calls["PairwiseDistance"] = call<PairwiseDistance>;
}

void add_activations(Functions& functions) {
  auto& t = functions.layers;
  t["Tanhshrink"] = [](const Case&) { return make<Tanhshrink>(); };
  t["Softsign"] = [](const Case&) { return make<Softsign>(); };
  t["SELU"] = [](const Case&) { return make<SELU>(); };
  t["CELU"] = [](const Case& c) { return make<CELU>(CELU::Options{c.number("alpha", CELU().alpha)}); };
  t["Hardtanh"] = [](const Case& c) {
    return make<Hardtanh>(Hardtanh::Options{c.number("low", Hardtanh().o.low), c.number("high", Hardtanh().o.high)});
  };
  t["Hardshrink"] = [](const Case& c) {
    return make<Hardshrink>(Hardshrink::Options{c.number("lambda", Hardshrink().lambda)});
  };
  t["Softshrink"] = [](const Case& c) {
    return make<Softshrink>(Softshrink::Options{c.number("lambda", Softshrink().lambda)});
  };
  t["Threshold"] = [](const Case& c) {
    return make<Threshold>(Threshold::Options{c.number("threshold"), c.number("value")});
  };
  t["Softmin"] = [](const Case& c) { return make<Softmin>(Softmin::Options{c.integer("dim")}); };
  t["Softmax2d"] = [](const Case&) { return make<Softmax2d>(); };
  t["AlphaDropout"] = [](const Case&) { return make<AlphaDropout>(); };
}

}  // namespace

void add_layers(Functions& functions) {
  add_composed(functions.ops);
  add_picking(functions.ops);
  add_losses(functions.ops);
  add_adaptive(functions);
  add_similarity(functions);
  add_activations(functions);
}

}  // namespace golden
