// linear_cross_entropy(), which computes the output projection and the loss in chunks of rows, against both as one
// piece.
#include <doctest/doctest.h>

#include <cmath>

#include "autograd/autocast.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "tensor/memory.h"
#include "tensor/random.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

struct HeadCase {
  Variable x, weight;
  Tensor target;
};

HeadCase head_case(int64_t rows, int64_t width, int64_t classes, DType dtype = f64) {
  manual_seed(uint64_t(rows * 100 + classes));
  const TensorOptions as{.dtype = dtype == f64 ? f64 : f32};
  return {Variable(randn({rows, width}, as).to(dtype), true),
          Variable(mul_scalar(randn({classes, width}, as), 0.5).to(dtype), true), randint(0, classes, {rows})};
}

using HeadLoss = std::function<Variable(const Variable& x, const Variable& weight)>;

/// The loss, and the gradients of x and weight. The upstream gradient is `up`, or random if there are several losses.
std::vector<Tensor> three(const HeadLoss& loss, const HeadCase& c, double up = 1) {
  const Variable out = loss(c.x, c.weight);
  manual_seed(3);
  const Tensor gradient =
      out.dim() == 0 ? full({}, up, {.dtype = out.dtype()}) : rand(out.shape(), {.dtype = out.dtype()});
  const auto grads = grad(out, {c.x, c.weight}, {.grad_outputs = {gradient}});
  return {out.tensor(), grads[0].tensor(), grads[1].tensor()};
}

/// The largest difference relative to the largest expected value (absolute if that is nearly 0).
double apart(const Tensor& got, const Tensor& expected) {
  REQUIRE(got.shape() == expected.shape());
  if (got.numel() == 0) return 0;
  const Tensor wide = expected.to(f64), off = abs(sub(got.to(f64), wide));
  if (any(isnan(wide)).item<bool>()) return equal(isnan(got), isnan(expected)) ? 0 : INFINITY;
  return max(off).item() / std::max(max(abs(wide)).item(), 1e-3);
}

/// The largest of these differences between two lists.
double apart(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  REQUIRE(got.size() == expected.size());
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i)
    if (const double one = apart(got[i], expected[i]); one > largest || std::isnan(one)) largest = one;
  return largest;
}

HeadLoss entire(const Tensor& target, const CrossEntropyOptions& options) {
  return [=](const Variable& x, const Variable& w) { return cross_entropy(linear(x, w), target, options); };
}
HeadLoss by_rows(const Tensor& target, const CrossEntropyOptions& options, int64_t rows_at_once = 0) {
  return
      [=](const Variable& x, const Variable& w) { return linear_cross_entropy(x, w, target, options, rows_at_once); };
}

}  // namespace

TEST_CASE("linear_cross_entropy: loss and gradients equal cross_entropy(linear())") {
  for (const auto& [rows, classes] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 5}, {1, 1}, {1, 7}, {5, 1}, {13, 11}, {13, 101}, {64, 67}, {97, 50}})
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none})
      for (const double smoothing : {0., 0.1})
        for (const bool weighs : {false, true})
          for (const int ignored : {0, 1, 2}) {  // number of ignored rows: none, some, all
            HeadCase c = head_case(rows, 6, classes);
            if (ignored == 1) c.target = masked_fill(c.target, lt(c.target, full({}, 3, {.dtype = i64})), -7);
            if (ignored == 2) c.target.fill_(-7);
            const CrossEntropyOptions options{
                .weight = weighs ? add_scalar(rand({classes}, {.dtype = f64}), 0.1) : Tensor(),
                .ignore_index = -7,
                .label_smoothing = smoothing,
                .reduction = reduction};
            const auto expected = three(entire(c.target, options), c, 0.3);
            for (const int64_t at_once : {0, 1, 5, 16, 1000}) {
              CAPTURE(str(rows, " x ", classes, ", reduction ", int(reduction), ", smoothing ", smoothing, ", weights ",
                          weighs, ", ignored ", ignored, ", at once ", at_once));
              const auto got = three(by_rows(c.target, options, at_once), c, 0.3);
              CHECK(apart(got, expected) <= 1e-12);
              for (size_t i = 0; i < 3; ++i) CHECK(got[i].dtype() == expected[i].dtype());
              const NoGrad no_grad;  // the losses without gradients
              CHECK(equal(by_rows(c.target, options, at_once)(c.x, c.weight).tensor(), got[0]));
            }
          }
}

TEST_CASE("linear_cross_entropy: one input without a gradient, more dims, and a graph that is kept") {
  const HeadCase c = head_case(12, 5, 9);
  const auto expected = three(entire(c.target, {}), c);
  const Variable fixed_x(c.x.tensor()), fixed_w(c.weight.tensor());
  CHECK(apart(grad(linear_cross_entropy(fixed_x, c.weight, c.target, {}, 5), {c.weight})[0].tensor(), expected[2]) <=
        1e-12);
  CHECK(apart(grad(linear_cross_entropy(c.x, fixed_w, c.target, {}, 5), {c.x})[0].tensor(), expected[1]) <= 1e-12);
  CHECK(!linear_cross_entropy(fixed_x, fixed_w, c.target).requires_grad());

  const Variable none =
      linear_cross_entropy(c.x.view({3, 4, 5}), c.weight, c.target.view({3, 4}), {.reduction = Reduction::none}, 5);
  CHECK(none.shape() == Shape{3, 4});
  CHECK(apart(grad(sum(none) / 12.0, {c.x})[0].tensor(), expected[1]) <= 1e-12);

  for (const Reduction reduction : {Reduction::mean, Reduction::none}) {
    const Variable kept = sum(linear_cross_entropy(c.x, c.weight, c.target, {.reduction = reduction}, 5));
    const auto first = grad(kept, {c.x, c.weight}, {.retain_graph = true}), second = grad(kept, {c.x, c.weight});
    for (size_t i = 0; i < 2; ++i) CHECK(equal(first[i].tensor(), second[i].tensor()));
  }
}

TEST_CASE(
    "linear_cross_entropy, linear_padded: vocabularies whose rows of logits are padded, and one that needs none") {
  for (const int64_t classes : {1, 63, 64, 65, 32003, 50257, 128256}) {
    CAPTURE(classes);
    const HeadCase c = head_case(5, 3, classes);
    const auto expected = three(entire(c.target, {}), c, 0.3);
    Variable scores;  // kept, so that the gradient is made in other memory
    for (const HeadLoss& loss :
         {by_rows(c.target, {}, 2),
          HeadLoss([&](auto&x, auto&w) { return cross_entropy(linear_padded(x, w), c.target); }),
          HeadLoss([&](auto&x, auto&w) { return cross_entropy(scores = linear_padded(x, w), c.target); })})
      CHECK(apart(three(loss, c, 0.3), expected) <= 1e-12);
    CHECK(scores.shape() == Shape{5, classes});
    CHECK(apart(scores.tensor(), linear(c.x, c.weight).tensor()) <= 1e-14);
  }
  const HeadCase c = head_case(3, 2, 5);
  const auto product = [](const std::vector<Variable>& in) { return linear_padded(in[0].view({1, 3, 2}), in[1]); };
  CHECK(gradcheck(product, {c.x, c.weight}) == "");
  CHECK(gradgradcheck(product, {c.x, c.weight}) == "");
  const HeadCase low = head_case(3, 2, 5, f32);
  const Autocast autocast(bf16);
  CHECK(linear_padded(low.x, low.weight).dtype() == bf16);
  CHECK(apart(linear_padded(low.x, low.weight).tensor(), linear(low.x, low.weight).tensor()) <= 1e-2);
}

TEST_CASE("linear_cross_entropy: first and second derivatives") {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    HeadCase c = head_case(5, 3, 4);
    c.target = Tensor::from<int64_t>({0, 3, -100, 2, 3}, {5});
    const CrossEntropyOptions options{
        .weight = Tensor::from({1., 0.5, 2., 0.3}).to(f64), .label_smoothing = 0.2, .reduction = reduction};
    const auto loss = [&](const std::vector<Variable>& in) {
      return linear_cross_entropy(in[0], in[1], c.target, options, 2);
    };
    CHECK(gradcheck(loss, {c.x, c.weight}) == "");
    CHECK(gradgradcheck(loss, {c.x, c.weight}) == "");
  }
}

TEST_CASE("linear_cross_entropy: f32 and 16 bits are near f64 on the same numbers") {
  for (const auto& [dtype, near, near_gradients] : {std::tuple{f32, 2e-6, 2e-6}, {bf16, 5e-3, 2e-2}, {f16, 1e-3, 2e-3}})
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      INFO("dtype ", dtype, ", reduction ", int(reduction));
      const HeadCase c = head_case(211, 24, 503, dtype);
      HeadCase exact{Variable(c.x.tensor().to(f64), true), Variable(c.weight.tensor().to(f64), true), c.target};
      // Loss scaling: gradients as small as 1 / 211 of what f16 can represent.
      const double up = 1024;
      const auto expected = three(entire(c.target, {.reduction = reduction}), exact, up),
                 got = three(by_rows(c.target, {.reduction = reduction}, 32), c, up);
      CHECK(got[0].dtype() == f32);
      CHECK(got[1].dtype() == dtype);
      CHECK(got[2].dtype() == dtype);
      CHECK(apart(got[0], expected[0]) <= near);
      // The upstream gradients are random, in another dtype for each case: not comparable.
      if (reduction == Reduction::none) continue;
      CHECK(apart(got[1], expected[1]) <= near_gradients);
      CHECK(apart(got[2], expected[2]) <= near_gradients);
    }
}

TEST_CASE("linear_cross_entropy: f16 keeps probabilities that it has no normal numbers for") {
  // 4001 classes of nearly equal probability and small weights: p w / rows is 1e-8.
  manual_seed(4);
  const Tensor x = mul_scalar(randn({64, 8}), 0.1).to(f16), w = mul_scalar(randn({4001, 8}), 0.1).to(f16);
  const HeadCase low{Variable(x, true), Variable(w, true), randint(0, 4001, {64})};
  const HeadCase exact{Variable(x.to(f64), true), Variable(w.to(f64), true), low.target};
  for (const double weight : {1., 1e-2, 300.}) {
    const auto expected =
        three(entire(low.target, {.weight = full({4001}, weight, {.dtype = f64}), .reduction = Reduction::mean}), exact,
              1 << 14);
    const auto got = three(by_rows(low.target, {.weight = full({4001}, weight, {.dtype = f16})}, 16), low, 1 << 14);
    CHECK(apart(got[1], expected[1]) <= 2e-3);
    CHECK(apart(got[2], expected[2]) <= 2e-3);
  }
}

TEST_CASE("linear_cross_entropy: autocast multiplies in 16 bits, and gradients are f32 that were never rounded") {
  const HeadCase c = head_case(40, 16, 101, f32);
  const auto expected = three(entire(c.target, {}), c);
  for (const DType dtype : {bf16, f16}) {
    std::vector<Tensor> got;
    {
      const Autocast autocast(dtype);
      got = three(by_rows(c.target, {}, 16), c);
    }
    const double near = dtype == bf16 ? 2e-2 : 3e-3;
    for (const Tensor& one : got) CHECK(one.dtype() == f32);
    CHECK(apart(got, expected) <= near);
    CHECK(!equal(got[0], expected[0]));               // the products were computed in 16 bits
    CHECK(!equal(got[2], got[2].to(dtype).to(f32)));  // was never rounded to 16 bits
  }
}

TEST_CASE("linear_cross_entropy: the same bits with any number of threads") {
  for (const DType dtype : {f32, bf16}) {
    const HeadCase c = head_case(150, 33, 1009, dtype);
    check_threads([&] { return three(by_rows(c.target, {.label_smoothing = 0.1}, 48), c); });
    check_threads([&] { return three(by_rows(c.target, {.reduction = Reduction::none}, 48), c); });
  }
}

TEST_CASE("linear_cross_entropy: memory is that of one chunk's logits and the gradients") {
  const OnCpu on_cpu;
  constexpr int64_t rows = 640, width = 16, classes = 50257, at_once = 64, packing = 5 << 20;
  const HeadCase c = head_case(rows, width, classes, f32);
  const auto peak = [&](const std::function<void()>& f) {
    const int64_t before = memory_report().total.current;
    reset_peak_memory();
    f();
    return memory_report().total.peak - before;
  };
  const int64_t chunk = at_once * classes * 4, gradients = (rows + classes) * width * 4;
  for (const Reduction reduction : {Reduction::mean, Reduction::none}) {
    const CrossEntropyOptions options{.reduction = reduction};
    CHECK(peak([&] { three(by_rows(c.target, options, at_once), c); }) < chunk + gradients + packing);
    CHECK(peak([&] {
            const NoGrad no_grad;
            by_rows(c.target, options, at_once)(c.x, c.weight);
          }) < chunk + packing);
  }
  CHECK(peak([&] { three(entire(c.target, {}), c); }) > rows * classes * 4);
  // The default number of rows.
  CHECK(linear_cross_entropy_rows(1000) == 25152);
  CHECK(linear_cross_entropy_rows(classes) == 512);
}

TEST_CASE("linear_cross_entropy: invalid arguments are rejected before anything is computed") {
  const OnCpu on_cpu;
  const HeadCase c = head_case(4, 3, 5);
  const Tensor five = Tensor::from<int64_t>({1, 2, 5, 0}, {4});
  const std::pair<std::function<void()>, const char*> rows[] = {
      {[&] { linear_cross_entropy(c.x, c.weight, five); }, "expected targets in [0, 5), got 5 in row 2"},
      {[&] { linear_cross_entropy(c.x, c.weight.t(), c.target); }, "expected x (..., C) and a weight (V, C)"},
      {[&] { linear_cross_entropy(c.x, c.weight, c.x.tensor()); }, "probabilities need cross_entropy(linear("},
      {[&] { linear_cross_entropy(c.x, c.weight, c.target.narrow(0, 0, 3)); }, "expected class indices i64 (4)"},
      {[&] { linear_cross_entropy(c.x, c.weight.to(f32), c.target); }, "of one floating dtype"},
      {[&] { linear_cross_entropy(c.x, c.weight, c.target, {.weight = ones({4})}); },
       "expected class weights of shape (5)"},
      {[&] { linear_cross_entropy(c.x, c.weight, c.target, {.weight = ones({5})}); }, "expected class weights in f64"},
      {[&] { linear_cross_entropy(c.x, c.weight, c.target, {.label_smoothing = 2}); }, "label_smoothing in [0, 1]"},
      {[&] { linear_cross_entropy(c.x, c.weight, c.target, {}, -1); }, "expected rows_at_once >= 0, got -1"},
  };
  for (const auto& [call, expected] : rows) {
    CHECK_ERROR(call(), "[linear_cross_entropy]");
    CHECK_ERROR(call(), expected);
  }
}

TEST_CASE("matmul_into: writes and adds, and sums 16 bits in f32") {
  manual_seed(6);
  const Tensor a = randn({17, 300}), b = randn({40, 300});
  for (const DType dtype : {f32, f16, bf16}) {
    CAPTURE(dtype);
    const Tensor low_a = a.to(dtype), low_b = b.to(dtype), entire = matmul(low_a.to(f32), low_b.to(f32).t());
    const Tensor out = full({17, 40}, NAN);
    matmul_into(out, low_a, low_b.t());
    CHECK(allclose(out, entire, 1e-5, 1e-4));
    matmul_into(out, low_a, low_b.t(), true);
    CHECK(allclose(out, mul_scalar(entire, 2), 1e-5, 1e-4));
    const Tensor same = empty({17, 40}, {.dtype = dtype});
    matmul_into(same, low_a, low_b.t());
    CHECK(equal(same, matmul(low_a, low_b.t())));
  }
  CHECK_ERROR(matmul_into(empty({17, 40}, {.dtype = bf16}), a, b.t()), "expected a result in f32");
  CHECK_ERROR(matmul_into(empty({40, 17}), a, b.t()), "an (M, N) of contiguous rows, got");
}
