// Cases of single operations: a table from the op's name to a function that calls it.
#include <cmath>
#include <functional>

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
  t["bce_with_logits_weighted"] = [](const Inputs& in, const Case& c) {
    return Outputs{bce_with_logits(in[0], in[1], in[2].tensor(), in[3].tensor(), reduction_of(c))};
  };
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
  t.insert(of_extensions().ops.begin(), of_extensions().ops.end());
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
