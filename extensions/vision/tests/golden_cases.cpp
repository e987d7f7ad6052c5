// The golden cases of convolutions and pooling of volumes, and of resampling.
#include "extensions/vision/vision.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::nn;

namespace {

using In = const Inputs&;
using Outs = Outputs;
using Table = std::map<std::string, std::function<Callee(const Case&)>>;

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
  if (!equal(both.values.tensor(), layer(in[0]).tensor())) fail("expected equal values with indices");
  return {both.values, both.indices};
}

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
template <class L, int n> void add_adaptive(Table& t, const std::string& name) {
  t[name] = [](const Case& c) {
    return with(std::make_unique<L>(typename L::Options{size<n>(c, "output", 1)}), [](L& l, In in) {
      if constexpr (requires { l.with_indices(in[0]); }) return pooled(l, in, true);
      else return Outs{l(in[0])};
    });
  };
}
template <class L, int n> void add_unpool(Table& t, const std::string& name) {
  t[name] = [](const Case& c) {
    return with(std::make_unique<L>(typename L::Options{size<n>(c, "kernel", 2), stride<n>(c)}),
                [&](L& l, In in) { return Outs{l(in[0], c.tensor("extra/indices"), c.dims("sizes"))}; });
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
#define LOCKSTEP_POOLS(add, name) \
  add<name##1d, 1>(t, #name "1d"), add<name##2d, 2>(t, #name "2d"), add<name##3d, 3>(t, #name "3d")
  LOCKSTEP_POOLS(add_max_pool, MaxPool);
  LOCKSTEP_POOLS(add_avg_pool, AvgPool);
  LOCKSTEP_POOLS(add_lp_pool, LPPool);
  LOCKSTEP_POOLS(add_adaptive, AdaptiveAvgPool);
  LOCKSTEP_POOLS(add_adaptive, AdaptiveMaxPool);
  LOCKSTEP_POOLS(add_unpool, MaxUnpool);
#undef LOCKSTEP_POOLS
}

void add_images(Functions& functions) {
  functions.ops["conv_transpose2d"] = [](const Inputs& in, const Case& c) {
    const ConvArgs args{.stride = c.dims("stride"),
                        .padding = c.dims("padding"),
                        .dilation = c.dims("dilation"),
                        .groups = c.integer("groups", 1)};
    return Outputs{conv_transpose2d(in[0], in[1], in.size() > 2 ? in[2] : Variable(), args, c.dims("output_padding"))};
  };
  functions.ops["avg_pool2d"] = [](const Inputs& in, const Case& c) {
    return Outputs{avg_pool2d(in[0], {.kernel = c.dims("kernel"),
                                      .stride = c.dims("stride"),
                                      .padding = c.dims("padding"),
                                      .ceil_mode = c.flag("ceil_mode", false),
                                      .count_include_pad = c.flag("count_include_pad", true)})};
  };
  functions.ops["adaptive_avg_pool2d"] = [](const Inputs& in, const Case& c) {
    return Outputs{adaptive_avg_pool2d(in[0], c.dims("size")[0], c.dims("size")[1])};
  };
  functions.layers["AvgPool2d"] = [](const Case& c) {
    const Pair kernel = size<2>(c, "kernel_size", 2);
    return std::make_unique<AvgPool2d>(AvgPool2d::Options{kernel, c.arg("stride") ? size<2>(c, "stride", 1) : kernel,
                                                          size<2>(c, "padding", 0), c.flag("ceil_mode", false),
                                                          c.flag("count_include_pad", true)});
  };
  functions.layers["AdaptiveAvgPool2d"] = [](const Case& c) {
    return std::make_unique<AdaptiveAvgPool2d>(AdaptiveAvgPool2d::Options{size<2>(c, "output", 1)});
  };
}

}  // namespace

void add_vision(Functions& functions) {
  add_images(functions);
  add_convolutions(functions.called);
  add_functions(functions.called);
  functions.layers["LocalResponseNorm"] = [](const Case& c) {
    const LocalResponseNorm::Options o{c.integer("size")};
    return std::make_unique<LocalResponseNorm>(
        LocalResponseNorm::Options{o.size, c.number("alpha", o.alpha), c.number("beta", o.beta), c.number("k", o.k)});
  };
  functions.layers["ConvTranspose2d"] = [](const Case& c) {
    return std::make_unique<ConvTranspose2d>(
        ConvTranspose2d::Options{c.integer("in"), c.integer("out"), size<2>(c, "kernel_size", 1),
                                 size<2>(c, "stride", 1), size<2>(c, "padding", 0), size<2>(c, "output_padding", 0),
                                 size<2>(c, "dilation", 1), c.integer("groups", 1), c.flag("bias", true)});
  };
}

}  // namespace golden
