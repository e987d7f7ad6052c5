// Every differentiable operation against central differences in f64, one table row each. A new row of pointwise.def is
// tested without a change here.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/autograd/op_rows.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

/// The interval on which a pointwise operation is defined and smooth.
std::pair<double, double> range_of(const std::string& name) {
  for (const char* positive : {"log", "log2", "sqrt", "rsqrt", "reciprocal", "rdiv_scalar", "pow_scalar", "pow", "div",
                               "floor_divide", "remainder"})
    if (name == positive) return {0.3, 2};
  if (name.ends_with("gamma")) return {0.5, 3};
  if (name == "log1p") return {-0.6, 2};
  if (name == "softplus") return {-4, 30};
  if (name == "hardswish" || name == "hardsigmoid") return {-5, 5};
  return {-2, 2};
}

struct UnaryRow {
  std::string name, types;
  std::function<Variable(const Variable&)> fn;
  std::function<Variable(Variable)> in_place;  // changes its argument
};

const UnaryRow unary_rows[] = {
#define LOCKSTEP_UNARY(name, functor, types) \
  {#name, #types, [](const Variable& x) { return name(x); }, [](Variable x) { return name##_(x); }},
#define LOCKSTEP_UNARY1(name, functor, types, p, d) \
  {#name, #types, [](const Variable& x) { return name(x, 0.7); }, [](Variable x) { return name##_(x, 0.7); }},
#define LOCKSTEP_UNARY2(name, functor, types, p, d, q, e) \
  {#name, #types, [](const Variable& x) { return name(x, 0.3, 1.1); }, [](Variable x) { return name##_(x, 0.3, 1.1); }},
#include "tensor/pointwise.def"
};

struct BinaryRow {
  std::string name;
  std::function<Variable(const Variable&, const Variable&)> fn;
  std::function<Variable(Variable, const Variable&)> in_place;  // changes its first argument
};

const BinaryRow binary_rows[] = {
#define LOCKSTEP_BINARY(name, functor, types)                              \
  {#name, [](const Variable& a, const Variable& b) { return name(a, b); }, \
   [](Variable a, const Variable& b) { return name##_(a, b); }},
#include "tensor/pointwise.def"
};

Variable squared(const Variable& y) { return y * y; }

Tensor mask_of(const Shape& shape) {
  Tensor mask = empty(shape, {.dtype = boolean, .device = cpu});
  for (int64_t i = 0; i < mask.numel(); ++i) mask.data<bool>()[i] = i % 3 != 1;
  return mask.to(default_device());
}

}  // namespace

TEST_CASE("operators compare variables with variables, tensors and numbers") {
  const Tensor t = Tensor::from<float>({1, 3});
  const Variable v(Tensor::from<float>({1, 2}), true);
  const std::pair<Tensor, std::vector<bool>> rows[] = {
      {v == v, {true, true}},  {v == t, {true, false}},  {t != v, {false, true}}, {v < t, {false, true}},
      {t < v, {false, false}}, {v >= t, {true, false}},  {v > 1, {false, true}},  {1 >= v, {true, false}},
      {v == 2, {false, true}}, {2.0 != v, {true, false}}};
  for (const auto& [got, wanted] : rows) CHECK(got.to_vector<bool>() == wanted);
}

TEST_CASE("dividing by a number divides the gradient") {
  for (const DType dtype : {f32, f64}) {
    const double by = dtype == f32 ? 1e-40 : 1e-310;  // its reciprocal is infinite
    const TensorOptions like{.dtype = dtype};
    const Variable x(full({2}, 3 * by, like), true);
    const Variable y = x / by;
    CHECK(y.tensor()[0].item() == doctest::Approx(3).epsilon(1e-4));
    y.backward(full({2}, 5 * by, like));
    CHECK(x.grad()[1].item() == doctest::Approx(5).epsilon(1e-4));
    const Variable z(full({1}, 49, like), true);
    sum((z / 49) * (z - 9)).backward();
    CHECK(z.grad().item() == doctest::Approx(1 + 40. / 49));
    CHECK(mean(full({49}, 1, like)).item() == 1);
  }
}

TEST_CASE("pointwise operations of one operand: gradients match finite differences") {
  manual_seed(1);
  for (const UnaryRow& op : unary_rows) {
    if (op.types == "logic") continue;
    const auto [low, high] = range_of(op.name);
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{3, 5, 7}, Shape{131}, Shape{0, 3}})
      check_row({op.name, {shape}, [&](const Inputs& x) { return op.fn(x[0]); }, low, high});
    check_row(
        {op.name + "_", {{4, 7}}, [&](const Inputs& x) { return squared(op.in_place(x[0].clone())); }, low, high});
    const Shape wide{2, 3, 4};
    check_row({op.name + " of an expanded view",
               {{3, 1}},
               [&](const Inputs& x) { return op.fn(x[0].expand(wide)); },
               low,
               high});
  }
}

TEST_CASE("pointwise operations of two operands: gradients match finite differences") {
  manual_seed(2);
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{2, 3}, {2, 3}}, {{3, 1, 5}, {4, 5}}, {{7, 3}, {}}, {{}, {5}}, {{71}, {71}}, {{1}, {4, 1}}, {{0, 2}, {1, 2}}};
  for (const BinaryRow& op : binary_rows) {
    const auto [low, high] = range_of(op.name);
    for (const auto& [a, b] : shapes)
      check_row({op.name, {a, b}, [&](const Inputs& x) { return op.fn(x[0], x[1]); }, low, high});
    check_row({op.name + "_",
               {{3, 4}, {4}},
               [&](const Inputs& x) { return squared(op.in_place(x[0].clone(), x[1])); },
               low,
               high});
    if (op.name != "maximum" && op.name != "minimum") {
      check_row({op.name + " with itself", {{5}}, [&](const Inputs& x) { return op.fn(x[0], x[0]); }, low, high});
      check_row({op.name + "_ with itself",
                 {{5}},
                 [&](const Inputs& x) { return op.in_place(x[0].clone(), x[0]); },
                 low,
                 high});
    }
  }
}

TEST_CASE("operations: gradients match finite differences") {
  manual_seed(3);
  const Tensor index = integers({1, 0, 3, 1, 2, 2}, {2, 3}), picks = integers({2, 0, 2, 1}, {4}),
               mask = mask_of({3, 5});
  const Tensor distinct = integers({1, 0, 3, 0, 2, 1}, {2, 3});
  const Tensor labels = integers({1, 4, -100, 0}, {4}), spatial = integers({1, 0, 2, -100, 1, 1}, {2, 3});
  const Tensor weights = sampled({5}, 0.5, 1.5).tensor(), floating_mask = sampled({3, 1, 4, 6}, -1, 1).tensor();
  const Tensor angles = sampled({5, 3}, -3, 3).tensor(), cosine = cos(angles), sine = sin(angles);
  const auto cross = [](CrossEntropyOptions options, Tensor target) {
    return [=](const Inputs& x) { return cross_entropy(x[0], target, options); };
  };
  const std::vector<OpRow> rows = {
      {"where", {{3, 1}, {5}}, [=](const Inputs& x) { return where(mask, x[0], x[1]); }},
      {"addcmul", {{3, 5}, {3, 5}, {5}}, [](const Inputs& x) { return addcmul(x[0], x[1], x[2], 0.5); }},
      {"lerp", {{9}, {9}}, [](const Inputs& x) { return lerp(x[0], x[1], 0.3); }},
      {"operators", {{4}, {4}}, [](const Inputs& x) { return -(2.0 - x[0] * 3.0) / (x[1] * x[1] + 1.0) + 1.0 / (3.0 + x[0] / 2.0) - x[1]; }, -1, 1},
      // reductions
      {"sum", {{3, 4, 5}}, [](const Inputs& x) { return sum(x[0]); }},
      {"sum dims", {{3, 4, 5}}, [](const Inputs& x) { return sum(x[0], {0, -1}); }},
      {"sum keepdim", {{3, 4}}, [](const Inputs& x) { return sum(x[0], {1}, true) * x[0]; }},
      {"mean", {{3, 4, 5}}, [](const Inputs& x) { return mean(x[0], {1}); }},
      {"mean all", {{7}}, [](const Inputs& x) { return mean(x[0]); }},
      {"amax", {{3, 4, 5}}, [](const Inputs& x) { return amax(x[0], {0, 2}); }},
      {"amin", {{3, 4}}, [](const Inputs& x) { return amin(x[0], {-1}, true); }},
      {"max all", {{3, 4}}, [](const Inputs& x) { return max(x[0]); }},
      {"min all", {{3, 4}}, [](const Inputs& x) { return min(x[0]); }},
      {"max dim", {{3, 4, 2}}, [](const Inputs& x) { return max(x[0], 1).values; }},
      {"min dim", {{3, 4}}, [](const Inputs& x) { return min(x[0], -1, true).values; }},
      {"var", {{3, 4, 5}}, [](const Inputs& x) { return var(x[0], {0, 2}); }},
      {"var biased", {{6}}, [](const Inputs& x) { return var(x[0], {}, 0); }},
      {"stddev", {{3, 7}}, [](const Inputs& x) { return stddev(x[0], {1}); }},
      {"norm", {{3, 4}}, [](const Inputs& x) { return norm(x[0], {1}); }},
      {"norm all", {{3, 4}}, [](const Inputs& x) { return norm(x[0]); }},
      {"logsumexp", {{3, 4, 5}}, [](const Inputs& x) { return logsumexp(x[0], {0, 2}); }},
      {"sort", {{3, 7}}, [](const Inputs& x) { return sort(x[0], -1, true).values; }},
      {"sort dim 0", {{7, 3}}, [](const Inputs& x) { return sort(x[0], 0).values; }},
      {"topk", {{3, 7}}, [](const Inputs& x) { return topk(x[0], 3).values; }},
      {"topk smallest", {{7, 2}}, [](const Inputs& x) { return topk(x[0], 2, 0, false).values; }},
      // matrix products
      {"matmul 1 row", {{1, 5}, {5, 1}}, [](const Inputs& x) { return matmul(x[0], x[1]); }},
      {"matmul broadcast", {{2, 1, 3, 5}, {4, 5, 2}}, [](const Inputs& x) { return matmul(x[0], x[1]); }},
      {"matmul transposed", {{5, 3}, {4, 5}}, [](const Inputs& x) { return matmul(x[0].t(), x[1].t()); }},
      {"matmul heads", {{2, 4, 3, 5}, {2, 6, 3, 5}}, [](const Inputs& x) { return matmul(x[0].permute({0, 2, 1, 3}), x[1].permute({0, 2, 3, 1})); }},
      {"addmm", {{4}, {3, 5}, {5, 4}}, [](const Inputs& x) { return addmm(x[0], x[1], x[2], 0.5, 2); }},
      {"outer", {{3}, {5}}, [](const Inputs& x) { return outer(x[0], x[1]); }},
      {"linear", {{3, 5}, {4, 5}, {4}}, [](const Inputs& x) { return linear(x[0], x[1], x[2]); }},
      {"linear no bias", {{2, 3, 5}, {4, 5}}, [](const Inputs& x) { return linear(x[0], x[1]); }},
      {"linear, two of one input", {{2, 3, 5}, {4, 5}, {4, 5}}, [](const Inputs& x) { return linear(x[0], x[1]) * linear(x[0], x[2]); }},
      {"linear_add", {{2, 3, 4}, {2, 3, 5}, {4, 5}, {4}}, [](const Inputs& x) { return linear_add(x[0], x[1], x[2], x[3]); }},
      {"linear_add no bias", {{3, 4}, {3, 5}, {4, 5}}, [](const Inputs& x) { return linear_add(x[0], x[1], x[2]); }},
      {"linear_add of its input", {{3, 4}, {4, 4}, {4}}, [](const Inputs& x) { return linear_add(x[0], x[0], x[1], x[2]) * x[0]; }},
      {"linear_add through gelu", {{3, 4}, {5, 4}, {4, 5}}, [](const Inputs& x) { return linear_add(x[0], linear(x[0], x[1], {}, Activation::gelu_tanh), x[2]); }},
      {"linear_add to all rows", {{4}, {3, 5}, {4, 5}}, [](const Inputs& x) { return linear_add(x[0], x[1], x[2]); }},
      {"linear vector", {{5}, {4, 5}, {4}}, [](const Inputs& x) { return linear(x[0], x[1], x[2]); }},
      {"linear silu", {{3, 5}, {4, 5}}, [](const Inputs& x) { return linear(x[0], x[1], {}, Activation::silu); }},
      // convolution and pooling
      {"conv2d 1x1", {{2, 3, 2, 2}, {5, 3, 1, 1}, {5}}, [](const Inputs& x) { return conv2d(x[0], x[1], x[2]); }},
      {"conv1d", {{2, 3, 9}, {4, 3, 3}, {4}}, [](const Inputs& x) { return conv1d(x[0], x[1], x[2], 2, 1); }},
      // rows
      {"softmax", {{3, 7}}, [](const Inputs& x) { return softmax(x[0], -1); }},
      {"softmax dim 0", {{3, 4, 2}}, [](const Inputs& x) { return softmax(x[0], 0); }},
      {"log_softmax", {{3, 4, 2}}, [](const Inputs& x) { return log_softmax(x[0], 1); }},
      {"layer_norm", {{4, 7}, {7}, {7}}, [](const Inputs& x) { return layer_norm(x[0], {7}, x[1], x[2]); }},
      {"layer_norm 2 dims", {{3, 4, 5}, {4, 5}}, [](const Inputs& x) { return layer_norm(x[0], {4, 5}, x[1]); }},
      {"layer_norm plain", {{3, 19}}, [](const Inputs& x) { return layer_norm(x[0], {19}); }},
      {"rms_norm", {{3, 2, 7}, {7}}, [](const Inputs& x) { return rms_norm(x[0], x[1]); }},
      {"batch_norm", {{3, 4, 2, 3}, {4}, {4}}, [](const Inputs& x) { return batch_norm(x[0], x[1], x[2], {}, {}, true); }},
      {"batch_norm 2 dims", {{5, 4}}, [](const Inputs& x) { return batch_norm(x[0], {}, {}, {}, {}, true); }},
      {"batch_norm eval", {{3, 5, 2}, {5}, {5}}, [=](const Inputs& x) { return batch_norm(x[0], x[1], x[2], weights, weights, false); }},
      {"dropout", {{5, 7}}, [](const Inputs& x) { return dropout(x[0], 0.4) * x[0]; }},
      {"add_dropout", {{5, 7}, {5, 7}}, [](const Inputs& x) { return add_dropout(x[0], x[1], 0.4) * x[0]; }},
      {"add_norm", {{4, 7}, {4, 7}, {7}, {7}}, [](const Inputs& x) { const SumAndNorm y = add_norm(x[0], x[1], {7}, x[2], x[3], {.p = 0.4}); return y.sum * y.norm; }},
      {"add_norm alone", {{4, 7}, {4, 7}, {7}, {7}}, [](const Inputs& x) { return add_norm(x[0], x[1], {7}, x[2], x[3], {.p = 0.4}).norm; }},
      {"add_norm plain", {{3, 2, 5}, {3, 2, 5}}, [](const Inputs& x) { const SumAndNorm y = add_norm(x[0], x[1], {2, 5}, {}, {}, {}); return y.sum * y.norm + y.sum; }},
      {"add_norm rms", {{4, 7}, {4, 7}, {7}}, [](const Inputs& x) { const SumAndNorm y = add_norm(x[0], x[1], {7}, x[2], {}, {.centered = false, .p = 0.3}); return y.norm * y.sum; }},
      {"embedding", {{4, 3}}, [=](const Inputs& x) { return embedding(x[0], index); }},
      {"embedding tied", {{4, 3}, {5, 3}}, [=](const Inputs& x) { return linear(x[1], x[0]).t() * sum(embedding(x[0], picks)); }},
      // attention
      {"attention", {{2, 4, 3, 8}, {2, 2, 5, 8}, {2, 2, 5, 8}}, [](const Inputs& x) { return attention(x[0], x[1], x[2]); }},
      {"attention causal", {{1, 2, 4, 3}, {1, 2, 4, 3}, {1, 2, 4, 3}}, [](const Inputs& x) { return attention(x[0], x[1], x[2], {}, {.scale = 0.3, .causal = true}); }},
      {"attention mask", {{3, 2, 4, 4}, {3, 2, 6, 4}, {3, 2, 6, 4}}, [=](const Inputs& x) { return attention(x[0], x[1], x[2], floating_mask); }},
      {"attention_packed", {{2, 5, 3 * 6}}, [](const Inputs& x) { return attention_packed(x[0], 2); }},
      {"attention_packed, shared keys", {{2, 5, 8 * 3}}, [](const Inputs& x) { return attention_packed(x[0], 4, {.scale = 0.4, .causal = true}, 2); }},
      {"rotary", {{2, 5, 6}}, [=](const Inputs& x) { return rotary(x[0], cosine, sine); }},
      {"rotary_packed", {{2, 5, 3 * 6}}, [=](const Inputs& x) { return rotary_packed(x[0], 2, 3, cosine, sine) * x[0]; }},
      {"rotary_packed over x", {{2, 5, 3 * 8}}, [=](const Inputs& x) { return rotary_packed(x[0] * x[0], 2, 3, cosine, sine); }},
      // losses
      {"cross_entropy", {{4, 5}}, cross({}, labels)},
      {"cross_entropy one row", {{5}}, cross({}, integers({3}, {}))},
      {"cross_entropy sum", {{4, 5}}, cross({.weight = weights, .reduction = Reduction::sum}, labels)},
      {"cross_entropy none", {{4, 5}}, cross({.label_smoothing = 0.2, .reduction = Reduction::none}, labels)},
      {"cross_entropy all", {{4, 5}}, cross({.weight = weights, .ignore_index = 4, .label_smoothing = 0.1}, integers({1, 4, 2, 0}, {4}))},
      {"cross_entropy spatial", {{2, 5, 3}}, cross({.weight = weights}, spatial)},
      {"cross_entropy spatial none", {{2, 5, 3}}, cross({.reduction = Reduction::none}, spatial)},
      {"cross_entropy probabilities", {{4, 5}, {4, 5}}, [=](const Inputs& x) { return cross_entropy(x[0], x[1], {.weight = weights, .label_smoothing = 0.1}); }},
      // indexing and joining
      {"gather", {{4, 3}}, [=](const Inputs& x) { return gather(x[0], 0, index); }},
      {"scatter", {{4, 3}, {2, 3}}, [=](const Inputs& x) { return scatter(x[0], 0, distinct, x[1]); }},
      {"scatter part", {{4, 3}, {3, 5}}, [=](const Inputs& x) { return scatter(x[0], 0, distinct, x[1]); }},
      {"scatter_add", {{4, 3}, {2, 3}}, [=](const Inputs& x) { return scatter_add(x[0], 0, index, x[1]); }},
      {"scatter_add part", {{4, 3}, {5, 3}}, [=](const Inputs& x) { return scatter_add(x[0], 0, index, x[1]); }},
      {"scatter_add small index", {{4, 3}, {3, 4}}, [=](const Inputs& x) { return scatter_add(x[0], 0, index.narrow(1, 0, 2), x[1]); }},
      {"scatter_add no index", {{4, 3}, {2, 3}}, [=](const Inputs& x) { return scatter_add(x[0], 0, index.narrow(1, 0, 0), x[1]); }},
      {"index_select", {{2, 3}}, [=](const Inputs& x) { return index_select(x[0], 1, picks); }},
      {"masked_fill", {{3, 5}}, [=](const Inputs& x) { return masked_fill(x[0], mask, -3); }},
      {"cat", {{2, 3}, {2, 1}, {2, 4}}, [](const Inputs& x) { return cat(x, 1); }},
      {"stack", {{2, 3}, {2, 3}}, [](const Inputs& x) { return stack(x, -1); }},
      {"pad", {{3, 4}}, [](const Inputs& x) { return pad(x[0], {1, 2, 0, 3}, 0.5); }},
      {"pad negative", {{3, 6}}, [](const Inputs& x) { return pad(x[0], {-1, -2, 2, -1}); }},
      {"tril", {{4, 5}}, [](const Inputs& x) { return tril(x[0], -1); }},
      {"triu", {{2, 4, 3}}, [](const Inputs& x) { return triu(x[0], 1); }},
      // views
      {"view", {{3, 4}}, [](const Inputs& x) { return (x[0] * 2.0).view({2, -1}); }},
      {"reshape", {{3, 4, 2}}, [](const Inputs& x) { return x[0].transpose(0, 2).reshape({8, 3}); }},
      {"flatten", {{3, 4, 2}}, [](const Inputs& x) { return x[0].flatten(1); }},
      {"permute", {{3, 4, 2}}, [](const Inputs& x) { return x[0].permute({2, 0, 1}); }},
      {"permute negative", {{3, 4, 2}}, [](const Inputs& x) { return x[0].permute({-1, 0, -2}); }},
      {"slice", {{9, 7}}, [](const Inputs& x) { return x[0].slice(0, 1, 8, 3) * x[0].slice(0, 0, 3); }},
      {"narrow", {{5, 4}}, [](const Inputs& x) { return x[0].narrow(1, 1, 2) + x[0].narrow(1, 2, 2); }},
      {"select", {{3, 4}}, [](const Inputs& x) { return x[0][1] * x[0].select(0, -1); }},
      {"diagonal", {{4, 5}}, [](const Inputs& x) { return x[0].diagonal(1); }},
      {"expand", {{3, 1}}, [](const Inputs& x) { return x[0].expand({2, -1, 4}); }},
      {"squeeze", {{3, 1, 2}}, [](const Inputs& x) { return x[0].squeeze() * x[0].squeeze(1).unsqueeze(-1).squeeze(-1); }},
      {"chunk", {{2, 7}}, [](const Inputs& x) { return x[0].chunk(3, 1)[1] * x[0].chunk(3, 1)[0]; }},
      {"split", {{7, 2}}, [](const Inputs& x) { const auto parts = x[0].split(std::vector<int64_t>{2, 4, 1}); return sum(parts[0]) * parts[2] + x[0].narrow(0, 0, 1); }},
      {"contiguous clone", {{3, 4}}, [](const Inputs& x) { return x[0].t().contiguous() * x[0].clone().t(); }},
      {"to", {{3, 4}}, [](const Inputs& x) { return (x[0].to(f64) * 2.0).to(cpu); }},
      // graphs
      {"diamond", {{3, 4}}, [](const Inputs& x) { return sum(exp(x[0]) * sin(x[0]), {0}) + x[0][0]; }},
      {"mlp block", {{2, 3, 6}, {6}, {6}, {8, 6}, {6, 8}}, [](const Inputs& x) {
         return x[0] + linear(linear(layer_norm(x[0], {6}, x[1], x[2]), x[3], {}, Activation::gelu_tanh), x[4]);
       }},
  };
  for (const OpRow& row : rows) check_row(row);
  // vectors, matrices and batches of them
  for (const Shape& left : {Shape{5}, Shape{3, 5}, Shape{2, 3, 5}})
    for (const Shape& right : {Shape{5}, Shape{5, 4}, Shape{2, 5, 4}})
      check_row({str("matmul ", left, right), {left, right}, [](const Inputs& x) { return matmul(x[0], x[1]); }});
  for (const Activation f : {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf})
    check_row({str("linear ", int(f)), {{2, 3, 5}, {4, 5}, {4}}, [=](const Inputs& x) {
                 return linear(x[0], x[1], x[2], f);
               }});
  for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none})
    check_row({str("mse_loss ", int(r)), {{3, 4}, {3, 4}}, [=](const Inputs& x) { return mse_loss(x[0], x[1], r); }});
}

TEST_CASE("gradients at zeros and ties match PyTorch") {
  const auto grads = [](std::initializer_list<double> values, const Shape& shape, auto fn) {
    const Variable x(Tensor::from<double>(values, shape), true);
    sum(fn(x)).backward();
    return x.grad().template to_vector<double>();
  };
  using List = std::vector<double>;
  CHECK(grads({1, 3, 3, 3}, {4}, [](auto& x) { return amax(x * 2.0); })[1] == doctest::Approx(2.0 / 3));
  CHECK(grads({1, 3, 3, 2}, {1, 4}, [](auto& x) { return max(x, 1).values; }) == List{0, 1, 0, 0});
  CHECK(grads({0, 0}, {2}, [](auto& x) { return norm(x); }) == List{0, 0});
  CHECK(grads({4, 4, 4}, {3}, [](auto& x) { return stddev(x); }) == List{0, 0, 0});
  CHECK(grads({0, 1}, {2}, [](auto& x) { return maximum(x, full({}, 0, {.dtype = f64})); }) == List{0.5, 1});
  CHECK(grads({-INFINITY, -INFINITY}, {2}, [](auto& x) { return logsumexp(x, {0}); }) == List{0, 0});
  const Tensor picked = integers({0, 1, 1}, {3});
  CHECK(grads({1, 2, 3, 4}, {2, 2}, [&](auto& x) { return embedding(x, picked, 0); }) == List{0, 0, 2, 2});
  CHECK(grads({-1.5, 2.5}, {2}, [](auto& x) { return floor(x) * 3.0; }) == List{0, 0});
}

TEST_CASE("cross entropy with nothing to learn from") {
  const Variable logits(Tensor::from<float>({1, 2, 3, 4}, {2, 2}), true);
  CHECK(std::isnan(cross_entropy(logits, integers({-100, -100}, {2})).item()));
  CHECK(cross_entropy(logits, integers({-100, -100}, {2}), {.reduction = Reduction::sum}).item() == 0);
  const Variable one(Tensor::from<float>({1, 2}, {2, 1}), true);
  const Variable loss = cross_entropy(one, rand({2, 1}));
  CHECK(loss.item() == 0);
  CHECK(!std::signbit(loss.item()));
  loss.backward();
  CHECK(one.grad().to_vector<float>() == std::vector<float>{0, 0});
}

TEST_CASE("cross entropy writes its gradient over logits that nobody else holds") {
  manual_seed(4);
  const Variable x(randn({4, 5}), true);
  const Tensor labels = integers({0, 1, 2, 4}, {4});
  const auto loss_of = [&](Variable* keep) {
    Variable logits = x * 2.0;
    if (keep) *keep = logits;
    return cross_entropy(logits, labels);
  };
  loss_of(nullptr).backward();
  const Tensor in_place = x.grad().clone();
  x.grad() = {};
  Variable held;
  const Variable loss = loss_of(&held);
  const Tensor before = held.tensor().clone();
  loss.backward();
  CHECK(equal(held.tensor(), before));
  CHECK(equal(x.grad(), in_place));
  x.grad() = {};
  const Variable again = loss_of(nullptr);
  again.backward({}, true);
  again.backward();
  CHECK(allclose(x.grad(), in_place * 2.0));
  const Variable low(x.tensor().to(bf16), true);  // f16 and bf16 give an f32 loss: no overflow under loss scaling
  CHECK(cross_entropy(low, labels).dtype() == f32);
}

TEST_CASE("mean squared error of many f16 values does not overflow on the way") {
  const Variable x(full({100000}, 2, {.dtype = f16}), true);
  const Variable loss = mse_loss(x, zeros({100000}, {.dtype = f16}));
  CHECK(loss.item() == 4);
}

TEST_CASE("wrong arguments are named") {
  const Variable x(randn({64, 5}), true), y(randn({30, 2}), true);
  const Tensor labels = integers({0, 5}, {2});
  const Variable two(randn({2, 5}));
  CHECK_ERROR_IS(mse_loss(x, y),
                 "[mse_loss] expected x and target of one shape, got (64, 5) and (30, 2); reshape one of them");
  CHECK_ERROR_IS(cross_entropy(two, labels),
                 "[cross_entropy] expected targets in [0, 5), got 5 in row 1; correct the targets");
  CHECK_ERROR_IS(
      cross_entropy(x, labels),
      "[cross_entropy] expected class indices of shape (64) for logits (64, 5), got (2); reshape the indices");
  CHECK_ERROR_IS(
      cross_entropy(x, y),
      "[cross_entropy] expected probabilities of the logits' shape (64, 5) (or i64 class indices of shape (64)), got "
      "f32 (30, 2); convert or reshape the target");
  CHECK_ERROR_IS(cross_entropy(two, labels, {.weight = ones({4})}),
                 "[cross_entropy] expected a weight of shape (5), one for each class, got (4)");
  CHECK_ERROR_IS(dropout(x, NAN), "[dropout] expected p in [0, 1], got nan");
  CHECK_ERROR_IS(
      attention_packed(x, 2),
      "[attention_packed] expected head counts >= 1 and qkv (B, T, C) with C a multiple of 6 heads (query, key and "
      "value), got (64, 5); change the head counts, or the last size");
  CHECK_ERROR_IS(embedding(x, integers({0}, {1}), 64), "[embedding] expected padding_index in [-1, 64), got 64");
}

TEST_CASE("convolutions and pools: gradients match finite differences, whatever their options") {
  manual_seed(7);
  // All pairs of options for rows and columns: the options of columns are taken from another row.
  struct One {
    int64_t stride, padding, dilation;
  };
  const One ones[] = {{1, 0, 1}, {1, 1, 2}, {2, 1, 1}, {2, 0, 3}, {3, 2, 2}, {1, 3, 4}, {2, 2, 5}, {3, 1, 1}};
  const size_t n = std::size(ones);
  for (size_t i = 0; i < n; ++i) {
    const One &row = ones[i], &column = ones[(3 * i + 2) % n];
    const ConvArgs args{.stride = {row.stride, column.stride},
                        .padding = {row.padding, column.padding},
                        .dilation = {row.dilation, column.dilation},
                        .groups = 1 + int64_t(i % 2)};
    const auto conv = [&](const Inputs& x) { return conv2d(x[0], x[1], x.size() > 2 ? x[2] : Variable(), args); };
    std::vector<Shape> of_conv{{1, 2, 9, 6}, {2, 2 / args.groups, 3, 2}};
    if (i % 3 != 0) of_conv.push_back({2});
    check_row({str("conv2d ", i), of_conv, conv});
    const PoolArgs pool{.kernel = {3, 2},
                        .stride = {row.stride, column.stride},
                        .padding = {row.padding % 2, column.padding % 2},
                        .dilation = {1 + int64_t(i % 2), 1 + int64_t(i / 2 % 2)},
                        .ceil_mode = i % 2 == 1};
    check_row({str("max_pool2d ", i), {{1, 2, 6, 7}}, [&](const Inputs& x) { return max_pool2d(x[0], pool); }});
  }
}
