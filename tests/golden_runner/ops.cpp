// Cases of single operations: a table from the op's name to a function that calls it.
#include <cmath>
#include <functional>

#include "autograd/composed.h"
#include "autograd/fft.h"
#include "autograd/losses.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

namespace {

using Inputs = std::vector<Variable>;
using Outputs = std::vector<Variable>;

template <class Fn> Run unary(Fn fn) {
  return [fn](const Inputs& in, const Case&) { return Outputs{fn(in[0])}; };
}
template <class Fn> Run binary(Fn fn) {
  return [fn](const Inputs& in, const Case&) { return Outputs{fn(in[0], in[1])}; };
}
template <class Fn> Run reduce(Fn fn) {
  return [fn](const Inputs& in, const Case& c) { return Outputs{fn(in[0], c.dims("dim"), c.flag("keepdim", false))}; };
}
template <class Fn> Run spread(Fn fn) {
  return [fn](const Inputs& in, const Case& c) {
    return Outputs{fn(in[0], c.dims("dim"), c.number("correction", 1), c.flag("keepdim", false))};
  };
}
Outputs with_indices(const VariableIndices& r) { return {r.values, r.indices}; }

Reduction reduction_of(const Case& c) {
  const std::string text = c.text("reduction", "mean");
  return text == "none" ? Reduction::none : text == "sum" ? Reduction::sum : Reduction::mean;
}

/// Operations of autograd/composed.h.
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

/// Operations of autograd/composed.h and tensor/search.h that pick elements.
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

/// Operations of autograd/fft.h and complex.h; complex numbers are passed as pairs.
void add_fft(std::map<std::string, Run>& t) {
  const auto numbers = [](const Variable& x, const Case& c) {
    return c.flag("real", false) ? x : complex(x.select(-1, 0), x.select(-1, 1));
  };
  const auto pairs = [](const Variable& y) { return Outputs{is_complex(y.dtype()) ? view_as_real(y) : y}; };
  const auto norm = [](const Case& c) {
    const std::string text = c.text("norm", "backward");
    return text == "ortho" ? fft::Norm::ortho : text == "forward" ? fft::Norm::forward : fft::Norm::backward;
  };
  const auto one = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) {
      const std::optional<int64_t> n = c.arg("n") ? std::optional<int64_t>(c.integer("n")) : std::nullopt;
      return pairs(fn(numbers(in[0], c), n, c.integer("dim", -1), norm(c)));
    };
  };
  const auto many = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) {
      return pairs(fn(numbers(in[0], c), c.dims("s"), c.dims("dims"), norm(c)));
    };
  };
#define LOCKSTEP_ONE(name) one(#name, [](auto&&... a) { return fft::name(a...); })
#define LOCKSTEP_MANY(name) many(#name, [](auto&&... a) { return fft::name(a...); })
  LOCKSTEP_ONE(fft);
  LOCKSTEP_ONE(ifft);
  LOCKSTEP_ONE(rfft);
  LOCKSTEP_ONE(irfft);
  LOCKSTEP_ONE(hfft);
  LOCKSTEP_ONE(ihfft);
  LOCKSTEP_MANY(fftn);
  LOCKSTEP_MANY(ifftn);
  LOCKSTEP_MANY(rfftn);
  LOCKSTEP_MANY(irfftn);
  LOCKSTEP_MANY(fft2);
  LOCKSTEP_MANY(ifft2);
  LOCKSTEP_MANY(rfft2);
  LOCKSTEP_MANY(irfft2);
#undef LOCKSTEP_ONE
#undef LOCKSTEP_MANY
  const auto shift = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) { return pairs(fn(numbers(in[0], c), c.dims("dims"))); };
  };
  shift("fftshift", [](const Variable& x, const Dims& d) { return fft::fftshift(x, d); });
  shift("ifftshift", [](const Variable& x, const Dims& d) { return fft::ifftshift(x, d); });
  const auto each = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) {
      return pairs(
          fn(numbers(in[0], c), in.size() > 1 ? complex(in[1].select(-1, 0), in[1].select(-1, 1)) : Variable()));
    };
  };
  each("complex_add", [](const auto& a, const auto& b) { return a + b; });
  each("complex_sub", [](const auto& a, const auto& b) { return a - b; });
  each("complex_mul", [](const auto& a, const auto& b) { return a * b; });
  each("complex_div", [](const auto& a, const auto& b) { return a / b; });
  each("complex_abs", [](const auto& a, const auto&) { return abs(a); });
  each("complex_angle", [](const auto& a, const auto&) { return angle(a); });
  each("complex_conj", [](const auto& a, const auto&) { return conj(a); });
  each("complex_square", [](const auto& a, const auto&) { return square(a); });
  each("complex_reciprocal", [](const auto& a, const auto&) { return reciprocal(a); });
  each("complex_sum", [](const auto& a, const auto&) { return sum(a); });
}

/// The losses of autograd/losses.h.
void add_losses(std::map<std::string, Run>& t) {
  const auto add = [&](const char* name, auto loss) {
    t[name] = [loss](const Inputs& in, const Case& c) { return Outputs{loss(in, c, reduction_of(c))}; };
  };
  const auto weight = [](const Inputs& in) { return in.size() > 2 ? in[2].tensor() : Tensor(); };
  add("bce_loss", [=](auto& in, auto&, auto r) { return bce_loss(in[0], in[1], weight(in), r); });
  add("bce_with_logits_weighted",
      [](auto& in, auto&, auto r) { return bce_with_logits(in[0], in[1], in[2].tensor(), in[3].tensor(), r); });
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

std::map<std::string, Run> make_table() {
  std::map<std::string, Run> t;
#define LOCKSTEP_UNARY(name, functor, types) t[#name] = unary([](const Variable& x) { return name(x); });
#define LOCKSTEP_BINARY(name, functor, types) \
  t[#name] = binary([](const Variable& a, const Variable& b) { return name(a, b); });
#define LOCKSTEP_COMPARE(name, functor) \
  t[#name] = binary([](const Variable& a, const Variable& b) { return Variable(name(a, b)); });
#include "tensor/pointwise.def"
  t["pow_scalar"] = [](const Inputs& in, const Case& c) { return Outputs{pow_scalar(in[0], c.number("exponent"))}; };
  t["leaky_relu"] = [](const Inputs& in, const Case& c) { return Outputs{leaky_relu(in[0], c.number("slope", 0.01))}; };
  t["elu"] = [](const Inputs& in, const Case& c) { return Outputs{elu(in[0], c.number("alpha", 1))}; };
  t["softplus"] = [](const Inputs& in, const Case& c) {
    return Outputs{softplus(in[0], c.number("beta", 1), c.number("threshold", 20))};
  };
  t["clamp"] = [](const Inputs& in, const Case& c) {
    return Outputs{clamp(in[0], c.number("min", -INFINITY), c.number("max", INFINITY))};
  };
  t["where"] = [](const Inputs& in, const Case&) { return Outputs{where(in[0].tensor().to(boolean), in[1], in[2])}; };
  t["addcmul"] = [](const Inputs& in, const Case& c) {
    return Outputs{addcmul(in[0], in[1], in[2], c.number("value", 1))};
  };
  t["lerp"] = [](const Inputs& in, const Case& c) { return Outputs{lerp(in[0], in[1], c.number("weight"))}; };
  t["cast_bf16_and_back"] = unary([](const Variable& x) { return x.to(bf16).to(f32); });
  t["cast_f16_and_back"] = unary([](const Variable& x) { return x.to(f16).to(f32); });

  t["sum"] = reduce([](const Variable& x, const Dims& d, bool k) { return sum(x, d, k); });
  t["mean"] = reduce([](const Variable& x, const Dims& d, bool k) { return mean(x, d, k); });
  t["prod"] = reduce([](const Variable& x, const Dims& d, bool k) { return prod(x, d, k); });
  t["amax"] = reduce([](const Variable& x, const Dims& d, bool k) { return amax(x, d, k); });
  t["amin"] = reduce([](const Variable& x, const Dims& d, bool k) { return amin(x, d, k); });
  t["norm2"] = reduce([](const Variable& x, const Dims& d, bool k) { return norm(x, d, k); });
  t["logsumexp"] = reduce([](const Variable& x, const Dims& d, bool k) { return logsumexp(x, d, k); });
  t["var"] = spread([](const Variable& x, const Dims& d, double c, bool k) { return var(x, d, c, k); });
  t["std"] = spread([](const Variable& x, const Dims& d, double c, bool k) { return stddev(x, d, c, k); });
  t["max"] = unary([](const Variable& x) { return max(x); });
  t["min"] = unary([](const Variable& x) { return min(x); });
  t["max_dim"] = [](const Inputs& in, const Case& c) {
    return with_indices(max(in[0], c.integer("dim"), c.flag("keepdim", false)));
  };
  t["min_dim"] = [](const Inputs& in, const Case& c) {
    return with_indices(min(in[0], c.integer("dim"), c.flag("keepdim", false)));
  };
  const auto place = [](bool largest) {
    return Run([largest](const Inputs& in, const Case& c) {
      const std::optional<int64_t> dim = c.arg("dim") ? std::optional<int64_t>(c.integer("dim")) : std::nullopt;
      return Outputs{largest ? argmax(in[0], dim, c.flag("keepdim", false))
                             : argmin(in[0], dim, c.flag("keepdim", false))};
    });
  };
  t["argmax"] = place(true);
  t["argmin"] = place(false);
  t["cumsum"] = [](const Inputs& in, const Case& c) { return Outputs{cumsum(in[0], c.integer("dim"))}; };
  t["cumprod"] = [](const Inputs& in, const Case& c) { return Outputs{cumprod(in[0], c.integer("dim"))}; };
  t["topk"] = [](const Inputs& in, const Case& c) {
    return with_indices(topk(in[0], c.integer("k"), c.integer("dim", -1), c.flag("largest", true)));
  };
  t["sort"] = [](const Inputs& in, const Case& c) {
    return with_indices(sort(in[0], c.integer("dim", -1), c.flag("descending", false)));
  };
  t["softmax"] = [](const Inputs& in, const Case& c) { return Outputs{softmax(in[0], c.integer("dim"))}; };
  t["log_softmax"] = [](const Inputs& in, const Case& c) { return Outputs{log_softmax(in[0], c.integer("dim"))}; };

  t["matmul"] = binary([](const Variable& a, const Variable& b) { return matmul(a, b); });
  t["outer"] = binary([](const Variable& a, const Variable& b) { return outer(a, b); });
  t["addmm"] = [](const Inputs& in, const Case& c) {
    return Outputs{addmm(in[0], in[1], in[2], c.number("beta", 1), c.number("alpha", 1))};
  };
  t["einsum"] = [](const Inputs& in, const Case& c) { return Outputs{einsum(c.text("equation", ""), in)}; };

  t["reshape"] = [](const Inputs& in, const Case& c) { return Outputs{in[0].reshape(c.dims("shape"))}; };
  t["permute"] = [](const Inputs& in, const Case& c) { return Outputs{in[0].permute(c.dims("dims"))}; };
  t["transpose"] = [](const Inputs& in, const Case& c) {
    const Dims d = c.dims("dims");
    return Outputs{in[0].transpose(d[0], d[1])};
  };
  t["expand"] = [](const Inputs& in, const Case& c) { return Outputs{in[0].expand(c.dims("shape"))}; };
  t["slice"] = [](const Inputs& in, const Case& c) {
    return Outputs{c.text("then", "") == "multiply by 2" ? in[0] * 2.0 : in[0]};
  };
  t["cat"] = [](const Inputs& in, const Case& c) { return Outputs{cat(in, c.integer("dim", 0))}; };
  t["stack"] = [](const Inputs& in, const Case& c) { return Outputs{stack(in, c.integer("dim", 0))}; };
  t["split"] = [](const Inputs& in, const Case& c) {
    const Dims sizes = c.dims("sizes");
    return in[0].split(std::vector<int64_t>(sizes.begin(), sizes.end()), c.integer("dim", 0));
  };
  t["chunk"] = [](const Inputs& in, const Case& c) { return in[0].chunk(c.integer("chunks"), c.integer("dim", 0)); };
  t["index_select"] = [](const Inputs& in, const Case& c) {
    return Outputs{index_select(in[0], c.integer("dim"), in[1].tensor())};
  };
  t["gather"] = [](const Inputs& in, const Case& c) {
    return Outputs{gather(in[0], c.integer("dim"), in[1].tensor())};
  };
  t["scatter"] = [](const Inputs& in, const Case& c) {
    return Outputs{scatter(in[0], c.integer("dim"), in[1].tensor(), in[2])};
  };
  t["scatter_add"] = [](const Inputs& in, const Case& c) {
    return Outputs{scatter_add(in[0], c.integer("dim"), in[1].tensor(), in[2])};
  };
  t["masked_fill"] = [](const Inputs& in, const Case& c) {
    return Outputs{masked_fill(in[0], in[1].tensor().to(boolean), c.number("value"))};
  };
  t["tril"] = [](const Inputs& in, const Case& c) { return Outputs{tril(in[0], c.integer("diagonal", 0))}; };
  t["triu"] = [](const Inputs& in, const Case& c) { return Outputs{triu(in[0], c.integer("diagonal", 0))}; };
  t["flip"] = [](const Inputs& in, const Case& c) { return Outputs{flip(in[0], c.dims("dims"))}; };
  t["roll"] = [](const Inputs& in, const Case& c) { return Outputs{roll(in[0], c.dims("shifts"), c.dims("dims"))}; };
  t["repeat"] = [](const Inputs& in, const Case& c) { return Outputs{repeat(in[0], c.dims("repeats"))}; };
  t["pad"] = [](const Inputs& in, const Case& c) {
    const Dims p = c.dims("pad");
    return Outputs{pad(in[0], std::vector<int64_t>(p.begin(), p.end()), c.number("value", 0))};
  };
  t["squeeze_unsqueeze"] = [](const Inputs& in, const Case& c) {
    return Outputs{in[0].squeeze(c.integer("squeeze")).unsqueeze(c.integer("unsqueeze"))};
  };
  t["diagonal"] = [](const Inputs& in, const Case& c) { return Outputs{in[0].diagonal(c.integer("offset", 0))}; };
  t["one_hot"] = [](const Inputs& in, const Case& c) {
    return Outputs{one_hot(in[0].tensor(), c.integer("classes", -1))};
  };
  t["embedding"] = [](const Inputs& in, const Case&) { return Outputs{embedding(in[0], in[1].tensor())}; };
  t["cast"] = [](const Inputs& in, const Case& c) { return Outputs{in[0].to(parse_dtype(c.text("dtype", "")))}; };

  const auto optional = [](const Inputs& in, size_t i) { return i < in.size() ? in[i] : Variable(); };
  const auto conv = [](const Case& c) {
    return ConvArgs{.stride = c.dims("stride"),
                    .padding = c.dims("padding"),
                    .dilation = c.dims("dilation"),
                    .groups = c.integer("groups", 1)};
  };
  const auto pool = [](const Case& c) {
    return PoolArgs{.kernel = c.dims("kernel"),
                    .stride = c.dims("stride"),
                    .padding = c.dims("padding"),
                    .dilation = c.arg("dilation") ? c.dims("dilation") : Dims{1, 1},
                    .ceil_mode = c.flag("ceil_mode", false),
                    .count_include_pad = c.flag("count_include_pad", true)};
  };
  t["linear"] = [=](const Inputs& in, const Case&) { return Outputs{linear(in[0], in[1], optional(in, 2))}; };
  t["conv2d"] = [=](const Inputs& in, const Case& c) {
    return Outputs{conv2d(in[0], in[1], optional(in, 2), conv(c))};
  };
  t["conv_transpose2d"] = [=](const Inputs& in, const Case& c) {
    return Outputs{conv_transpose2d(in[0], in[1], optional(in, 2), conv(c), c.dims("output_padding"))};
  };
  t["max_pool2d"] = [=](const Inputs& in, const Case& c) { return Outputs{max_pool2d(in[0], pool(c))}; };
  t["avg_pool2d"] = [=](const Inputs& in, const Case& c) { return Outputs{avg_pool2d(in[0], pool(c))}; };
  t["adaptive_avg_pool2d"] = [](const Inputs& in, const Case& c) {
    return Outputs{adaptive_avg_pool2d(in[0], c.dims("size")[0], c.dims("size")[1])};
  };
  t["layer_norm"] = [=](const Inputs& in, const Case& c) {
    return Outputs{layer_norm(in[0], c.dims("shape"), optional(in, 1), optional(in, 2), c.number("eps"))};
  };
  t["rms_norm"] = [](const Inputs& in, const Case& c) { return Outputs{rms_norm(in[0], in[1], c.number("eps"))}; };
  t["group_norm"] = [=](const Inputs& in, const Case& c) {
    return Outputs{group_norm(in[0], c.integer("groups"), optional(in, 1), optional(in, 2), c.number("eps"))};
  };
  t["batch_norm"] = [=](const Inputs& in, const Case& c) {
    return Outputs{batch_norm(in[0], optional(in, 1), optional(in, 2), {}, {}, true, 0.1, c.number("eps"))};
  };
  t["attention"] = [=](const Inputs& in, const Case& c) {
    return Outputs{attention(in[0], in[1], in[2], in.size() > 3 ? in[3].tensor() : Tensor(),
                             {.scale = c.number("scale", 0), .causal = c.flag("causal", false)})};
  };
  const auto classes = [](const Inputs& in, const Case& c, size_t weight) {
    return CrossEntropyOptions{.weight = weight < in.size() ? in[weight].tensor() : Tensor(),
                               .ignore_index = c.integer("ignore_index", -100),
                               .label_smoothing = c.number("label_smoothing", 0),
                               .reduction = reduction_of(c)};
  };
  t["cross_entropy"] = [=](const Inputs& in, const Case& c) {
    return Outputs{cross_entropy(in[0], in[1], classes(in, c, 2))};
  };
  t["nll_loss"] = [=](const Inputs& in, const Case& c) {
    return Outputs{nll_loss(in[0], in[1].tensor(), classes(in, c, 2))};
  };
  t["mse_loss"] = [=](const Inputs& in, const Case& c) { return Outputs{mse_loss(in[0], in[1], reduction_of(c))}; };
  t["l1_loss"] = [=](const Inputs& in, const Case& c) { return Outputs{l1_loss(in[0], in[1], reduction_of(c))}; };
  t["smooth_l1_loss"] = [=](const Inputs& in, const Case& c) {
    return Outputs{smooth_l1_loss(in[0], in[1], c.number("beta"), reduction_of(c))};
  };
  t["huber_loss"] = [=](const Inputs& in, const Case& c) {
    return Outputs{huber_loss(in[0], in[1], c.number("delta"), reduction_of(c))};
  };
  t["bce_with_logits"] = [=](const Inputs& in, const Case& c) {
    return Outputs{bce_with_logits(in[0], in[1], {}, {}, reduction_of(c))};
  };
  t["kl_div"] = [=](const Inputs& in, const Case& c) {
    return Outputs{kl_div(in[0], in[1], c.text("reduction", "mean") == "sum" ? KlReduction::sum : KlReduction::mean,
                          c.flag("log_target", false))};
  };
  add_losses(t);
  add_composed(t);
  add_picking(t);
  add_linalg(t);
  add_distributions(t);
  add_fft(t);
  return t;
}

}  // namespace

namespace {

/// Compares second derivatives: gradients of the inner product of the gradients with `along`.
void compare_second(const Case& c, const Variable& loss, const Inputs& bases, Report& report) {
  Inputs wanted;
  std::vector<int> places;
  for (size_t i = 0; i < bases.size(); ++i)
    if (c.has(str("along", i))) wanted.push_back(bases[i]), places.push_back(int(i));
  Variable slope;
  const auto grads = grad(loss, wanted, {.create_graph = true, .allow_unused = true});
  for (size_t k = 0; k < grads.size(); ++k) {
    if (!grads[k].defined()) continue;
    const Variable part = sum(mul(grads[k], Variable(c.tensor(str("along", places[k])))));
    slope = slope.defined() ? add(slope, part) : part;
  }
  std::vector<Variable> seconds(wanted.size());
  if (slope.defined() && slope.requires_grad())
    seconds = grad(slope, wanted, {.retain_graph = true, .allow_unused = true});
  for (size_t k = 0; k < seconds.size(); ++k)
    report.compare(str("grad of grad", places[k]),
                   seconds[k].defined() ? seconds[k].tensor() : zeros_like(wanted[k].tensor()),
                   c.tensor(str("second", places[k])));
}

}  // namespace

void run_op(const Case& c, Report& report) {
  static const std::map<std::string, Run> table = make_table();
  const std::string op = c.json().at("op").as_string();
  const Json* views = c.json().find("views");
  Inputs bases, inputs;
  for (int i = 0; c.has(str("in", i)); ++i) {
    const Tensor& base = c.tensor(str("in", i));
    bases.emplace_back(base.clone(), is_floating(base.dtype()));
    const Json* own = views ? views->find(str("in", i)) : nullptr;
    inputs.push_back(own ? apply_views(bases.back(), *own) : bases.back());
  }
  Outputs outputs;
  if (op.starts_with("expr:")) {
    outputs = {evaluate(op.substr(5), inputs, c)};
  } else {
    const auto run = table.find(op);
    LOCKSTEP_CHECK(run != table.end(), "unknown op '", op, "'");
    outputs = run->second(inputs, c);
  }
  // Several outputs are combined in one sum, as in a loss that uses all of them.
  Variable loss;
  for (size_t i = 0; i < outputs.size(); ++i) {
    report.compare(str("out", i), outputs[i].tensor(), c.tensor(str("out", i)));
    if (!c.has(str("gout", i)) || !outputs[i].requires_grad()) continue;
    const Variable part = sum(mul(outputs[i], Variable(c.tensor(str("gout", i)))));
    loss = loss.defined() ? add(loss, part) : part;
  }
  if (!report.ok()) return;
  if (loss.defined() && c.has("along0")) compare_second(c, loss, bases, report);
  if (loss.defined() && outputs.size() == 1) outputs[0].backward(c.tensor("gout0"));
  else if (loss.defined()) loss.backward();
  for (size_t i = 0; i < bases.size(); ++i) {
    if (!c.has(str("grad", i))) continue;
    const Tensor& grad = bases[i].grad();
    report.compare(str("grad", i), grad.defined() ? grad : zeros_like(bases[i].tensor()), c.tensor(str("grad", i)));
  }
}

}  // namespace golden
