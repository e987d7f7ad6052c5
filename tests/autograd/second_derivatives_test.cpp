// Higher derivatives: grad() and backward() with create_graph. ops_test.cpp checks the second derivative of each
// operation (gradgradcheck).
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "tests/apart.h"
#include "tests/autograd/loss_inputs.h"
#include "tests/messages.h"

using namespace lockstep;
using testing::max_difference;

namespace {

Variable f64_leaf(std::initializer_list<double> values) { return Variable(Tensor::from(values).to(f64), true); }

const GradOptions recorded{.create_graph = true};

}  // namespace

TEST_CASE("second derivatives: a chain of operations matches the function") {
  const Variable x = f64_leaf({0.5, -1.25, 2});
  Variable y = sum(mul(square(square(x)), tanh(x)));
  std::vector<Variable> derivatives;
  for (int order = 0; order < 4; ++order) {
    y = sum(grad(y, {x}, recorded)[0]);
    derivatives.push_back(y);
  }
  // Against finite differences of the order below.
  const double eps = 1e-5;
  for (int order = 1; order < 4; ++order) {
    const auto at = [&](double shift) {
      const Variable moved(add_scalar(x.tensor(), shift), true);
      Variable v = sum(mul(square(square(moved)), tanh(moved)));
      for (int k = 0; k < order; ++k) v = sum(grad(v, {moved}, recorded)[0]);
      return v.item();
    };
    CHECK(derivatives[size_t(order)].item() == doctest::Approx((at(eps) - at(-eps)) / (2 * eps)).epsilon(1e-6));
  }
}

TEST_CASE("second derivatives: grad() takes several outputs, their gradients, and inputs that are not used") {
  const Variable x = f64_leaf({3}), w = f64_leaf({2}), unused = f64_leaf({1});
  const Variable h = x * w, other = x * x;
  for (const bool create : {false, true}) {
    const GradOptions keep{.retain_graph = true, .create_graph = create};
    CHECK(grad({h, other}, {x}, keep)[0].item() == 2 + 6);
    GradOptions weighted = keep;
    weighted.grad_outputs = {f64_leaf({10}), Variable()};
    CHECK(grad({h, other}, {x, w}, weighted)[1].item() == 30);
    CHECK_ERROR_IS(
        grad(h, {x, unused}, keep),
        "[grad] no output depends on input 1; leave it out, or pass allow_unused = true for an undefined gradient");
    GradOptions any = keep;
    any.allow_unused = true;
    CHECK(!grad(h, {x, unused}, any)[1].defined());
    weighted.grad_outputs.pop_back();
    CHECK_ERROR_IS(grad({h, other}, {x}, weighted), "[grad] expected a grad_output for each of 2 outputs, got 1");
    CHECK_ERROR_IS(
        grad(h, {Variable(ones({1}))}, keep),
        "[grad] expected every input to require grad, input 0 does not; call requires_grad_() on it before the "
        "forward, or leave it out");
    // A gradient asked for at an intermediate node is the derivative from that node on.
    CHECK(grad(h * h, {h, x}, keep)[0].item() == 12);
    CHECK(grad(h * h, {h, x}, keep)[1].item() == 24);
    CHECK(grad(h, {x}, keep)[0].requires_grad() == create);
  }
  // The upstream gradients are differentiated as well.
  const Variable v = f64_leaf({5});
  const Variable g = grad(other, {x}, {.grad_outputs = {v}, .create_graph = true})[0];
  CHECK(grad(g, {v})[0].item() == 6);
  CHECK(!x.grad().defined());
}

TEST_CASE("second derivatives: backward leaves gradients on the tape") {
  Variable x = f64_leaf({2, -1});
  for (int pass = 1; pass <= 2; ++pass) {
    sum(x * x * x).backward({.create_graph = true});
    CHECK(x.grad().to_vector<double>() == std::vector<double>{12. * pass, 3. * pass});
    CHECK(equal(x.recorded_grad().tensor(), x.grad()));
  }
  CHECK(grad(sum(x.recorded_grad()), {x})[0].tensor().to_vector<double>() == std::vector<double>{24, -12});
  x.clear_grad();
  CHECK(!x.recorded_grad().defined());
  // Without create_graph it is an ordinary backward.
  (x * x).backward({.gradient = ones({2}, {.dtype = f64})});
  CHECK(x.grad().to_vector<double>() == std::vector<double>{4, -2});
  CHECK(!x.recorded_grad().defined());
}

TEST_CASE("second derivatives: listeners hear of a recorded pass; a hook may look, not replace") {
  Variable x = f64_leaf({2});
  const Variable y = x * x;
  int reported = 0, completed = 0;
  const int looks = x.on_grad([&](const Tensor& g) {
    reported += g.item() == 4;
    return Tensor();
  });
  x.on_grad_complete([&](Tensor&) { ++completed; });
  sum(y).backward({.create_graph = true});
  CHECK(reported == 1);
  CHECK(completed == 1);
  x.clear_grad();  // breaks the cycle: the leaf and its recorded gradient own each other
  x.remove_hook(looks);
  x.on_grad([](const Tensor& g) { return g * 0.5; });
  CHECK_ERROR_IS(
      grad(y, {x}, recorded),
      "[on_grad] hooks of 'leaf' must not replace the gradient with create_graph: the replacement would not be on "
      "the tape; return an undefined Tensor");
}

TEST_CASE("second derivatives: an Error names an operation without one, if it lies on the path to the input") {
  const Variable x = sampled({4, 1, 3});
  const Variable loss = record("sum_once", {&x}, sum(x.tensor()), [](Backward& back) {
    back.give(0, back.grad().expand({4, 1, 3}).contiguous());
  });
  const std::string none =
      "[backward] the derivative of 'sum_once' cannot be differentiated again (create_graph); "
      "compose this step from other operations";
  CHECK_ERROR_IS(grad(loss, {x}, recorded), none);
  const Variable w = f64_leaf({2});
  CHECK(grad(w * w + loss, {w}, recorded)[0].item() == 4);  // sum_once is not on the path to w
  const Variable again = checkpoint([](const Variable& in) { return in * in; }, w);
  CHECK_ERROR(grad(again, {w}, recorded), "the derivative of 'checkpoint'");
  Variable freed = w * w;
  freed.backward();
  CHECK_ERROR(grad(freed, {w}, recorded), "was freed by an earlier backward");
}

TEST_CASE("second derivatives: through operations that compute the same results, one of which is not used") {
  const auto composed = [](const std::vector<Variable>& in) {
    const Variable& a = in[0];
    return std::vector<Variable>{mul(sin(a), in[1]), add(mul(a, a), square(in[1])), exp(a)};
  };
  struct Derivative {
    Saved a, b;
    decltype(composed) same;
    void operator()(Backward&) { fail("only recorded passes run this"); }
    void operator()(RecordedBackward& back) { back.through_all({&a, &b}, same); }
  };
  const auto operation = [&](const Variable& a, const Variable& b) {
    std::vector<Tensor> out;
    for (const Variable& result : composed({a, b})) out.push_back(result.tensor());
    return record("operation", {a, b}, std::move(out), Derivative{a, b, composed});
  };
  const Variable x = f64_leaf({0.5, -1.25}), w = f64_leaf({2, 0.75});
  const auto slopes = [&](const auto& function, bool of_both) {
    const Variable h = mul(x, w), other = of_both ? w : h;  // also one variable as both inputs
    const std::vector<Variable> out = function(h, other);
    const Variable slope = grad(sum(add(mul(out[0], out[1]), h)), {x}, recorded)[0];
    std::vector<Variable> all = grad(sum(square(slope)), {x, w}, recorded);
    all.push_back(slope);
    return all;
  };
  for (const bool of_both : {true, false}) {
    const auto expected = slopes([&](const Variable& a, const Variable& b) { return composed({a, b}); }, of_both);
    const auto all = slopes(operation, of_both);
    for (size_t i = 0; i < all.size(); ++i) CHECK(max_difference(all[i].tensor(), expected[i].tensor()) < 1e-12);
  }
}

TEST_CASE("second derivatives: of attention with dropout, groups of heads, masks and rows without keys") {
  manual_seed(3);
  const Tensor visible = logical_not(eq(tril(ones({4, 6}, {.dtype = f64})), zeros({}, {.dtype = f64})));
  const std::tuple<const char*, AttentionArgs, Tensor> rows[] = {
      {"dropout", {.dropout = 0.4}, {}},
      {"causal", {.causal = true}, {}},
      {"window", {.causal = true, .window = 2}, {}},
      {"bool mask", {}, visible},
      {"a row without keys", {}, logical_not(visible)},
  };
  for (const auto& [name, args, mask] : rows) {
    CAPTURE(name);
    const Inputs x{sampled({1, 4, 4, 3}, -1, 1), sampled({1, 2, 6, 3}, -1, 1), sampled({1, 2, 6, 3}, -1, 1)};
    CHECK(gradgradcheck([&](const Inputs& in) { return attention(in[0], in[1], in[2], mask, args); }, x) == "");
  }
}

TEST_CASE("second derivatives: 16-bit floats and f32 agree with f64 to their precision") {
  manual_seed(4);
  const Tensor data = randn({6, 5}, {.dtype = f64}), weight = randn({5, 5}, {.dtype = f64});
  const auto penalty = [&](DType dtype) {
    const Variable x(data.to(dtype), true), w(weight.to(dtype), true);
    const Variable slope = grad(sum(gelu_tanh(linear(x, w))), {x}, recorded)[0];
    return grad(sum(square(slope)), {w})[0].tensor().to(f64);
  };
  const Tensor exact = penalty(f64);
  const double size = max(abs(exact)).item();
  for (const auto& [dtype, limit] : {std::pair{f32, 1e-5}, {f16, 2e-2}, {bf16, 1e-1}})
    CHECK(max_difference(penalty(dtype), exact) < limit * size);
}
