// The losses: gradients, edge cases and rejected arguments. Values and gradients with all options
// are golden cases (golden/losses.safetensors).
#include "extensions/layers/losses.h"

#include <doctest/doctest.h>

#include <cmath>

#include "autograd/autocast.h"
#include "tests/autograd/check_gradient.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("losses: gradients match finite differences") {
  manual_seed(4);
  const Tensor signs = integers({1, -1, -1, 1, -1, 1}, {2, 3}), one_each = integers({1, -1}, {2});
  const Tensor classes = integers({2, 0}, {2}), lists = integers({2, 0, -1, 1, -1, -1}, {2, 3});
  const Tensor weight = Tensor::from<double>({0.5, 1, 2}, {3});
  const auto squares = [](const Variable& x, const Variable& y) { return sum(square(x - y), {-1}); };
  check_gradients("bce", {{2, 3}, {2, 3}}, {0.1, 0.9}, [&](auto& x) { return bce_loss(x[0], x[1], weight); });
  check_gradients("poisson", {{2, 3}, {2, 3}}, {0.5, 3},
                  [](auto& x) { return poisson_nll_loss(x[0], x[1], {.full = true}); });
  check_gradients("poisson rate", {{4}, {4}}, {0.2, 3}, [](auto& x) {
    return poisson_nll_loss(x[0], x[1], {false, false, 0.1});
  });
  check_gradients("gaussian", {{2, 3}, {2, 3}, {2}}, {0.2, 2},
                  [](auto& x) { return gaussian_nll_loss(x[0], x[1], x[2]); });
  check_gradients("focal", {{2, 3}, {2, 3}}, {0.1, 0.9}, [](auto& x) { return sigmoid_focal_loss(x[0], x[1]); });
  CHECK_GRADIENTS(soft_margin_loss(x[0], signs), {2, 3});
  CHECK_GRADIENTS(hinge_embedding_loss(x[0], signs), {2, 3});
  CHECK_GRADIENTS(margin_ranking_loss(x[0], x[1], signs, 0.2), {2, 3}, {2, 3});
  CHECK_GRADIENTS(cosine_embedding_loss(x[0], x[1], one_each, -0.9), {2, 3}, {2, 3});
  CHECK_GRADIENTS(multi_margin_loss(x[0], classes, {2, 1, weight}), {2, 3});
  CHECK_GRADIENTS(multilabel_margin_loss(x[0], lists), {2, 3});
  CHECK_GRADIENTS(multilabel_soft_margin_loss(x[0], x[1]), {2, 3}, {2, 3});
  CHECK_GRADIENTS(pairwise_distance(x[0], x[1], 2.5), {2, 3}, {2, 3});
  CHECK_GRADIENTS(triplet_margin_loss(x[0], x[1], x[2], {3}), {2, 3}, {2, 3}, {2, 3});
  CHECK_GRADIENTS(triplet_margin_loss(x[0], x[1], x[2], {.margin = 5, .p = 1, .swap = true}), {4, 3}, {4, 3}, {4, 3});
  CHECK_GRADIENTS(triplet_margin_with_distance_loss(x[0], x[1], x[2], {.distance = squares, .margin = 20}), {2, 3},
                  {2, 3}, {2, 3});
}

TEST_CASE("losses: numbers at the edges") {
  const auto grads = [](std::initializer_list<double> values, auto fn) {
    const Variable x(Tensor::from<double>(values, {int64_t(values.size())}), true);
    sum(fn(x)).backward();
    return x.grad().to_vector<double>();
  };
  using List = std::vector<double>;
  const auto list = [](std::initializer_list<double> values) {
    return Tensor::from<double>(values, {int64_t(values.size())});
  };
  // A logarithm is clamped at -100; the gradients are PyTorch's.
  CHECK(bce_loss(list({0, 1, 0, 1}), list({0, 0, 1, 1}), {}, Reduction::none).tensor().to_vector<double>() ==
        List{0, 100, 100, 0});
  CHECK(grads({0, 1, 0}, [&](auto& x) { return bce_loss(x, list({0, 0, 1})); })[1] == doctest::Approx(1e12 / 3));
  // A score far on the wrong side gives neither infinity nor NaN.
  CHECK(soft_margin_loss(full({1}, -1000.0), ones({1})).item() == 1000);
  CHECK(grads({2000}, [&](auto& x) { return soft_margin_loss(x, -ones({1})); }) == List{1});
  CHECK(grads({-2000, 2000}, [&](auto& x) {
          return sigmoid_focal_loss(x, list({0, 1}), {.gamma = 0.5});
        }) == List{0, 0});
  // Stirling's approximation applies to targets above 1 only.
  CHECK(grads({0, 1}, [&](auto& t) { return poisson_nll_loss(list({0, 0}), t, {.full = true}); }) == List{0, 0});
  // A variance below eps is clamped to eps; its gradient passes through.
  CHECK(gaussian_nll_loss(list({3}), list({1}), list({0}), {.eps = 0.5}).item() ==
        doctest::Approx(0.5 * (std::log(0.5) + 8)));
  CHECK(grads({0}, [&](auto& v) { return gaussian_nll_loss(list({3}), list({1}), v, {.eps = 0.5}); })[0] ==
        doctest::Approx(0.5 * (2 - 16)));
  // The distance of equal vectors is 0 in every norm, with gradient 0.
  for (const double p : {0.5, 1.0, 2.0, 3.0, double(INFINITY)})
    CHECK(grads({1, 2}, [&](auto& x) { return pairwise_distance(x, x.detach(), p, 0); }) == List{0, 0});
  // A class listed twice counts twice; classes behind a -1 do not count.
  const Variable scores(list({0.1, 0.4, 0.2}));
  CHECK(multilabel_margin_loss(scores, integers({1, 1, -1}, {3})).item() == doctest::Approx(2 * (0.7 + 0.8) / 3));
  CHECK(multilabel_margin_loss(scores, integers({1, -1, 0}, {3})).item() == doctest::Approx((0.7 + 0.8) / 3));
}

TEST_CASE("losses: 16 bits are computed in f32 and rounded once, and stay f32 under autocast") {
  const Variable x(full({70000}, 2.0, {.dtype = f16}), true), y(full({70000}, -2.0, {.dtype = f16}));
  const Variable loss = margin_ranking_loss(x, y, full({70000}, -1, {.dtype = i64}));
  CHECK(loss.dtype() == f16);
  CHECK(loss.item() == 4);
  loss.backward();
  CHECK(x.grad().dtype() == f16);
  CHECK(sigmoid_focal_loss(x, y, {}, Reduction::mean).dtype() == f16);
  const Autocast scope(bf16);
  CHECK(margin_ranking_loss(x, y.to(f32), full({70000}, -1, {.dtype = i64})).dtype() == f32);
}

TEST_CASE("losses: invalid arguments are rejected") {
  const Variable x(rand({2, 3})), y(rand({2, 2})), v(rand({3})), wide(rand({2, 3}, {.dtype = f64}));
  const Tensor signs = integers({1, -1, 0, 1, 1, 1}, {2, 3}), two = integers({1, -1}, {2});
  CHECK_REJECTED(bce_loss, (x, y), "x and target of one shape, got (2, 3) and (2, 2)");
  CHECK_REJECTED(bce_loss, (x, wide), "x and target of one dtype, got f32 and f64; convert with .to(dtype)");
  CHECK_ERROR_BEGINS(bce_loss(x, x, rand({2})), "[bce_loss]");
  CHECK_REJECTED(poisson_nll_loss, (x, signs), "floating target, got i64");
  CHECK_REJECTED(poisson_nll_loss, (x, x, {.eps = -1}), "eps >= 0, got -1");
  CHECK_REJECTED(gaussian_nll_loss, (x, x, y),
                 "a variance of x's shape (2, 3), or without its last dim, or of size "
                 "1 in one dim, got (2, 2)");
  CHECK_REJECTED(gaussian_nll_loss, (x, x, ones({1, 1})), "a variance of x's shape");
  CHECK_REJECTED(gaussian_nll_loss, (x, x, x, {.eps = 0}), "eps > 0, got 0");
  CHECK_REJECTED(sigmoid_focal_loss, (x, x, {.gamma = -1}), "gamma >= 0, got -1");
  CHECK_REJECTED(sigmoid_focal_loss, (x, x, {.alpha = 2}), "alpha in [0, 1]");
  CHECK_REJECTED(hinge_embedding_loss, (x, two), "a target of shape (2, 3) for x (2, 3), got (2");
  CHECK_REJECTED(hinge_embedding_loss, (x, signs, NAN), "a finite margin in [-inf, inf], got nan");
  CHECK_REJECTED(margin_ranking_loss, (x, y, signs), "a and b of one shape");
  CHECK_REJECTED(cosine_embedding_loss, (x, x, two, 1.5), "a finite margin in [-1, 1], got 1.5");
  CHECK_REJECTED(cosine_embedding_loss, (rand({2, 2, 2}), rand({2, 2, 2}), two),
                 "a and b (N, D) or (D), got (2, 2, 2)");
  CHECK_REJECTED(cosine_embedding_loss, (x, x, signs), "a target of shape (2");
  CHECK_REJECTED(multi_margin_loss, (x, signs), "a target of i64 (2");
  CHECK_REJECTED(multi_margin_loss, (x, integers({0, 1}, {2}), {.p = 3}), "p of 1 or 2, got 3");
  CHECK_REJECTED(multi_margin_loss, (x, integers({0, 1}, {2}), {.weight = ones({2})}), "a weight of shape (3");
  CHECK_REJECTED(multi_margin_loss, (rand({2, 0}), integers({0, 1}, {2})),
                 "floating x (N, C) or (C) with at least one class, got f32 (2, 0)");
  CHECK_REJECTED(multilabel_soft_margin_loss, (full({}, 1), full({}, 1)), "x (..., C), got a scalar");
  CHECK_REJECTED(pairwise_distance, (x, x, 0), "p > 0, got 0");
  CHECK_REJECTED(triplet_margin_loss, (x, x, y), "anchor and negative of one shape");
  CHECK_REJECTED(triplet_margin_loss, (x, x, x, {.margin = 0}), "a margin > 0, got 0");
  CHECK(message([&] {
          int calls = 0;
          const auto odd = [&](const Variable& a, const Variable& b) { return ++calls > 1 ? a : sum(b); };
          triplet_margin_with_distance_loss(x, x, x, {.distance = odd});
        })
            .starts_with("[triplet_margin_with_distance_loss] expected options.distance to return one shape for all "
                         "pairs, got () and (2, 3)"));
  // The losses check values on the CPU only. On a device, a kernel may find a wrong value; the Error names that kernel.
  if (default_device().is_cpu()) {
    CHECK_REJECTED(bce_loss, (Variable(full({2}, 1.5)), Variable(ones({2}))), "x in [0, 1], got 1.5 at element 0");
    CHECK_REJECTED(bce_loss, (x + 1.0, x), "x in [0, 1], got ");
    CHECK_REJECTED(bce_loss, (x, x - 1.0), "targets in [0, 1], got -");
    CHECK_REJECTED(gaussian_nll_loss, (x, x, x - 1.0), "variances >= 0, got -");
    CHECK_REJECTED(soft_margin_loss, (x, signs), "targets of 1 and -1, got 0 at element 2");
    CHECK_REJECTED(multi_margin_loss, (x, two), "targets in [0, 3), got -1 at element 1");
    CHECK_REJECTED(multilabel_margin_loss, (v, integers({0, 3, -1}, {3})), "targets in [-1, 3), got 3 at element 1");
  }
}
