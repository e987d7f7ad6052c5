// Functions composed of other operations, on Tensor and on Variable: gradients, ties, NaN and rejected arguments. Their
// values are golden cases (golden/composed.safetensors).
#include "extensions/layers/composed.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/autograd/check_gradient.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("composed: gradients match finite differences") {
  manual_seed(6);
  const Tensor places = Tensor::from<int64_t>({1, 0, 1, 1}, {4, 1, 1});
  CHECK_GRADIENTS(cdist(x[0], x[1]), {2, 3, 4}, {5, 4});
  CHECK_GRADIENTS(take_along_dim(x[0], places, 0), {2, 3, 2});
  CHECK_GRADIENTS(take_along_dim(x[0], places, -1), {4, 1, 2});
  CHECK_GRADIENTS(logcumsumexp(x[0], 1), {3, 7, 2});
  CHECK_GRADIENTS(quantile(x[0], 0.4, 1), {3, 4});
  CHECK_GRADIENTS(quantile(x[0], 0.8, {}, true), {3, 4});
  CHECK_GRADIENTS(median(x[0], 0).values, {3, 4});
  CHECK_GRADIENTS(median(x[0]), {3, 4});
  check_gradients("meshgrid", {{3}, {2}}, [](auto& x) {
    const auto grid = meshgrid({x[0], x[1]}, true);
    return grid[0] * exp(grid[1]);
  });
}

TEST_CASE("composed: integers, ties, NaN, infinities and tensors off the tape") {
  using List = std::vector<double>;
  const auto numbers = [](const Tensor& x) { return x.to_vector<double>(); };
  const Tensor entire = Tensor::from<int64_t>({5, 1, 5, 2, 9, 9}, {2, 3});
  const auto [values, indices] = median(entire, 1);
  CHECK(numbers(values) == List{5, 9});
  CHECK(numbers(indices) == List{0, 1});  // sorting is stable: the first of equal elements
  CHECK(values.dtype() == i64);
  CHECK(!median(Variable(entire), 1).values.requires_grad());
  CHECK(median(entire).item() == 5);

  const Tensor holes = Tensor::from<float>({1, NAN, 3, NAN, 1, 2, 3, 4}, {2, 4});
  CHECK(numbers(isnan(median(holes, 1).values).to(i64)) == List{1, 0});
  CHECK(numbers(median(holes, 1).indices) == List{1, 1});
  CHECK(std::isnan(quantile(holes, 0.5).item()));
  CHECK(numbers(quantile(holes, 0.25, 1, true).narrow(0, 1, 1)) == List{1.75});
  const Tensor ends = Tensor::from<float>({-INFINITY, 1, INFINITY}, {3});
  CHECK(quantile(ends, 0).item() == -INFINITY);  // infinity minus itself must not make a NaN
  CHECK(quantile(ends, 0.5).item() == 1);

  CHECK(numbers(logcumsumexp(Tensor::from<float>({-INFINITY, 1000, -1000}, {3}), 0)) == List{-INFINITY, 1000, 1000});
  CHECK(logcumsumexp(zeros({0, 2}), 0).shape() == Shape{0, 2});
  const Variable far(full({2}, -INFINITY), true);
  sum(logcumsumexp(far, 0)).backward();
  CHECK(numbers(far.grad()) == List{0, 0});

  const Variable same(ones({1, 3}), true);
  sum(cdist(same, same.detach())).backward();
  CHECK(numbers(same.grad()) == List{0, 0, 0});
  // The square of this distance overflows f16.
  CHECK(cdist(full({1, 2}, 200, {.dtype = f16}), full({1, 2}, -100, {.dtype = f16})).item() == doctest::Approx(424.25));

  const auto [rows, columns] = [] {
    const std::vector<Tensor> grid = meshgrid({arange(2), arange(3)});
    return std::pair(grid[0], grid[1]);
  }();
  CHECK(numbers(rows * 3.0 + columns) == List{0, 1, 2, 3, 4, 5});
}

TEST_CASE("composed: invalid arguments are rejected") {
  const Tensor x = rand({2, 3}), entire = arange(3), picks = zeros({2, 1}, {.dtype = i64});
  CHECK_REJECTED(cdist, (x, rand({3, 2})), "a (..., P, M) and b (..., R, M), got (2, 3) and (3, 2)");
  CHECK_REJECTED(cdist, (x, rand({3, 3}, {.dtype = f64})), "two tensors of one floating dtype, got f32 and f64");
  CHECK_REJECTED(cdist, (Variable(entire), Variable(entire)), "two tensors of one floating dtype");
  CHECK_REJECTED(take_along_dim, (x, x, 0), "an i64 index with 2 dims for x (2, 3), got f32");
  CHECK_REJECTED(take_along_dim, (x, entire, 0), "an i64 index with 2 dims");
  CHECK_REJECTED(take_along_dim, (x, zeros({4, 1}, {.dtype = i64}), 1),
                 "x and index that broadcast in all dims but 1, got (2, 3) and (4, 1)");
  CHECK_ERROR_BEGINS(take_along_dim(x, picks, 2), "[take_along_dim] expected");
  CHECK_REJECTED(logcumsumexp, (entire, 0), "a floating dtype, got i64");
  CHECK_REJECTED(logcumsumexp, (full({}, 1), 0), "at least 1 dim, got a scalar");
  CHECK_REJECTED(quantile, (x, 1.5), "q in [0, 1], got 1.5");
  CHECK_REJECTED(quantile, (x, NAN), "q in [0, 1], got nan");
  CHECK_REJECTED(quantile, (entire, 0.5), "a floating dtype, got i64");
  CHECK_REJECTED(quantile, (rand({2, 0}), 0.5, 1), "at least one element, got (2, 0)");
  CHECK_REJECTED(median, (rand({2, 0}), 1), "at least one element along dim 1, got (2, 0)");
  CHECK_ERROR_BEGINS(median(x, 2), "[median] expected");
  CHECK_REJECTED(meshgrid, (std::vector<Tensor>{}), "at least one vector");
  CHECK_REJECTED(meshgrid, ({x}), "vectors, got (2, 3)");
  CHECK_REJECTED(meshgrid, ({entire, rand({2})}), "vectors of one dtype and device, got i64 on ");
}
