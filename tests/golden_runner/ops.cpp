// Cases of single operations: a table from the op's name to a function that calls it.
#include <cmath>

#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

namespace {

using In = const Inputs&;
using Of = const Case&;

template <class Fn> Run unary(Fn fn) {
  return [fn](In in, Of) { return Outputs{fn(in[0])}; };
}
template <class Fn> Run binary(Fn fn) {
  return [fn](In in, Of) { return Outputs{fn(in[0], in[1])}; };
}
template <class Fn> Run reduce(Fn fn) {
  return [fn](In in, Of c) { return Outputs{fn(in[0], c.dims("dim"), c.flag("keepdim", false))}; };
}
template <class Fn> Run variance_of(Fn fn) {
  return [fn](In in, Of c) {
    return Outputs{fn(in[0], c.dims("dim"), c.number("correction", 1), c.flag("keepdim", false))};
  };
}
Outputs with_indices(const VariableIndices& r) { return {r.values, r.indices}; }

std::map<std::string, Run> make_table() {
  std::map<std::string, Run> t;
#define LOCKSTEP_UNARY(name, functor, types) t[#name] = unary([](const Variable& x) { return name(x); });
#define LOCKSTEP_BINARY(name, functor, types) \
  t[#name] = binary([](const Variable& a, const Variable& b) { return name(a, b); });
#define LOCKSTEP_COMPARE(name, functor) \
  t[#name] = binary([](const Variable& a, const Variable& b) { return Variable(name(a, b)); });
#include "tensor/pointwise.def"
  t["pow_scalar"] = [](In in, Of c) { return Outputs{pow_scalar(in[0], c.number("exponent"))}; };
  t["leaky_relu"] = [](In in, Of c) { return Outputs{leaky_relu(in[0], c.number("slope", 0.01))}; };
  t["elu"] = [](In in, Of c) { return Outputs{elu(in[0], c.number("alpha", 1))}; };
  t["softplus"] = [](In in, Of c) { return Outputs{softplus(in[0], c.number("beta", 1), c.number("threshold", 20))}; };
  t["clamp"] = [](In in, Of c) { return Outputs{clamp(in[0], c.number("min", -INFINITY), c.number("max", INFINITY))}; };
  t["where"] = [](In in, Of) { return Outputs{where(in[0].tensor().to(boolean), in[1], in[2])}; };
  t["addcmul"] = [](In in, Of c) { return Outputs{addcmul(in[0], in[1], in[2], c.number("value", 1))}; };
  t["lerp"] = [](In in, Of c) { return Outputs{lerp(in[0], in[1], c.number("weight"))}; };
  t["cast_bf16_and_back"] = unary([](const Variable& x) { return x.to(bf16).to(f32); });
  t["cast_f16_and_back"] = unary([](const Variable& x) { return x.to(f16).to(f32); });

  t["sum"] = reduce([](const Variable& x, const Dims& d, bool k) { return sum(x, d, k); });
  t["mean"] = reduce([](const Variable& x, const Dims& d, bool k) { return mean(x, d, k); });
  t["amax"] = reduce([](const Variable& x, const Dims& d, bool k) { return amax(x, d, k); });
  t["amin"] = reduce([](const Variable& x, const Dims& d, bool k) { return amin(x, d, k); });
  t["norm2"] = reduce([](const Variable& x, const Dims& d, bool k) { return norm(x, d, k); });
  t["logsumexp"] = reduce([](const Variable& x, const Dims& d, bool k) { return logsumexp(x, d, k); });
  t["var"] = variance_of([](const Variable& x, const Dims& d, double c, bool k) { return var(x, d, c, k); });
  t["std"] = variance_of([](const Variable& x, const Dims& d, double c, bool k) { return stddev(x, d, c, k); });
  t["max"] = unary([](const Variable& x) { return max(x); });
  t["min"] = unary([](const Variable& x) { return min(x); });
  t["max_dim"] = [](In in, Of c) { return with_indices(max(in[0], c.integer("dim"), c.flag("keepdim", false))); };
  t["min_dim"] = [](In in, Of c) { return with_indices(min(in[0], c.integer("dim"), c.flag("keepdim", false))); };
  const auto place = [](bool largest) {
    return Run([largest](In in, Of c) {
      const std::optional<int64_t> dim = c.arg("dim") ? std::optional<int64_t>(c.integer("dim")) : std::nullopt;
      return Outputs{largest ? argmax(in[0], dim, c.flag("keepdim", false))
                             : argmin(in[0], dim, c.flag("keepdim", false))};
    });
  };
  t["argmax"] = place(true);
  t["argmin"] = place(false);
  t["topk"] = [](In in, Of c) {
    return with_indices(topk(in[0], c.integer("k"), c.integer("dim", -1), c.flag("largest", true)));
  };
  t["sort"] = [](In in, Of c) { return with_indices(sort(in[0], c.integer("dim", -1), c.flag("descending", false))); };
  t["softmax"] = [](In in, Of c) { return Outputs{softmax(in[0], c.integer("dim"))}; };
  t["log_softmax"] = [](In in, Of c) { return Outputs{log_softmax(in[0], c.integer("dim"))}; };

  t["matmul"] = binary([](const Variable& a, const Variable& b) { return matmul(a, b); });
  t["outer"] = binary([](const Variable& a, const Variable& b) { return outer(a, b); });
  t["addmm"] = [](In in, Of c) {
    return Outputs{addmm(in[0], in[1], in[2], c.number("beta", 1), c.number("alpha", 1))};
  };

  t["reshape"] = [](In in, Of c) { return Outputs{in[0].reshape(c.dims("shape"))}; };
  t["permute"] = [](In in, Of c) { return Outputs{in[0].permute(c.dims("dims"))}; };
  t["transpose"] = [](In in, Of c) {
    const Dims d = c.dims("dims");
    return Outputs{in[0].transpose(d[0], d[1])};
  };
  t["expand"] = [](In in, Of c) { return Outputs{in[0].expand(c.dims("shape"))}; };
  t["slice"] = [](In in, Of c) { return Outputs{c.text("then", "") == "multiply by 2" ? in[0] * 2.0 : in[0]}; };
  t["cat"] = [](In in, Of c) { return Outputs{cat(in, c.integer("dim", 0))}; };
  t["stack"] = [](In in, Of c) { return Outputs{stack(in, c.integer("dim", 0))}; };
  t["split"] = [](In in, Of c) {
    const Dims sizes = c.dims("sizes");
    return in[0].split(std::vector<int64_t>(sizes.begin(), sizes.end()), c.integer("dim", 0));
  };
  t["chunk"] = [](In in, Of c) { return in[0].chunk(c.integer("chunks"), c.integer("dim", 0)); };
  t["index_select"] = [](In in, Of c) { return Outputs{index_select(in[0], c.integer("dim"), in[1].tensor())}; };
  t["gather"] = [](In in, Of c) { return Outputs{gather(in[0], c.integer("dim"), in[1].tensor())}; };
  t["scatter"] = [](In in, Of c) { return Outputs{scatter(in[0], c.integer("dim"), in[1].tensor(), in[2])}; };
  t["scatter_add"] = [](In in, Of c) { return Outputs{scatter_add(in[0], c.integer("dim"), in[1].tensor(), in[2])}; };
  t["masked_fill"] = [](In in, Of c) {
    return Outputs{masked_fill(in[0], in[1].tensor().to(boolean), c.number("value"))};
  };
  t["tril"] = [](In in, Of c) { return Outputs{tril(in[0], c.integer("diagonal", 0))}; };
  t["triu"] = [](In in, Of c) { return Outputs{triu(in[0], c.integer("diagonal", 0))}; };
  t["pad"] = [](In in, Of c) {
    const Dims p = c.dims("pad");
    return Outputs{pad(in[0], std::vector<int64_t>(p.begin(), p.end()), c.number("value", 0))};
  };
  t["squeeze_unsqueeze"] = [](In in, Of c) {
    return Outputs{in[0].squeeze(c.integer("squeeze")).unsqueeze(c.integer("unsqueeze"))};
  };
  t["diagonal"] = [](In in, Of c) { return Outputs{in[0].diagonal(c.integer("offset", 0))}; };
  t["embedding"] = [](In in, Of) { return Outputs{embedding(in[0], in[1].tensor())}; };
  t["cast"] = [](In in, Of c) { return Outputs{in[0].to(parse_dtype(c.text("dtype", "")))}; };

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
                    .ceil_mode = c.flag("ceil_mode", false)};
  };
  t["linear"] = [=](In in, Of) { return Outputs{linear(in[0], in[1], optional(in, 2))}; };
  t["conv2d"] = [=](In in, Of c) { return Outputs{conv2d(in[0], in[1], optional(in, 2), conv(c))}; };
  t["max_pool2d"] = [=](In in, Of c) { return Outputs{max_pool2d(in[0], pool(c))}; };
  t["layer_norm"] = [=](In in, Of c) {
    return Outputs{layer_norm(in[0], c.dims("shape"), optional(in, 1), optional(in, 2), c.number("eps"))};
  };
  t["rms_norm"] = [](In in, Of c) { return Outputs{rms_norm(in[0], in[1], c.number("eps"))}; };
  t["batch_norm"] = [=](In in, Of c) {
    return Outputs{batch_norm(in[0], optional(in, 1), optional(in, 2), {}, {}, true, 0.1, c.number("eps"))};
  };
  t["attention"] = [=](In in, Of c) {
    return Outputs{attention(in[0], in[1], in[2], in.size() > 3 ? in[3].tensor() : Tensor(),
                             {.scale = c.number("scale", 0), .causal = c.flag("causal", false)})};
  };
  const auto classes = [](In in, Of c, size_t weight) {
    return CrossEntropyOptions{.weight = weight < in.size() ? in[weight].tensor() : Tensor(),
                               .ignore_index = c.integer("ignore_index", -100),
                               .label_smoothing = c.number("label_smoothing", 0),
                               .reduction = c.reduction()};
  };
  t["cross_entropy"] = [=](In in, Of c) { return Outputs{cross_entropy(in[0], in[1], classes(in, c, 2))}; };
  t["mse_loss"] = [=](In in, Of c) { return Outputs{mse_loss(in[0], in[1], c.reduction())}; };
  // Chains of operations.
  t["expr: x*x + x"] = unary([](const Variable& x) { return x * x + x; });
  t["expr: (x.exp() * x.sin()).sum(0) + x[0]"] =
      unary([](const Variable& x) { return sum(exp(x) * sin(x), {0}) + x[0]; });
  t["expr: sum over i of (x*(i+1)) for i in 0..4"] = unary([](const Variable& x) {
    Variable total = x * 1.0;
    for (int i = 1; i <= 4; ++i) total = total + x * (i + 1.0);
    return total;
  });
  t["expr: gelu_tanh(layer_norm(x) @ w1 + b1) @ w2"] = [](In in, Of c) {
    const Variable x = layer_norm(in[0], {in[0].size(-1)}, {}, {}, c.number("layer_norm_eps"));
    return Outputs{matmul(gelu_tanh(matmul(x, in[1]) + in[2]), in[3])};
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
  const auto run = table.find(op);
  LOCKSTEP_CHECK(run != table.end(), "unknown op '", op, "'");
  const Outputs outputs = run->second(inputs, c);
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
