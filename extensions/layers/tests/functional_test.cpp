// Jacobians, Hessians and their products with vectors, against each other and against formulas.
#include "extensions/layers/functional.h"

#include <doctest/doctest.h>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "extensions/operations/operations.h"
#include "tests/apart.h"
#include "tests/messages.h"

using namespace lockstep;
using testing::max_difference;

namespace {

Variable random_f64(const Shape& shape) {
  const Tensor x = empty(shape, {.dtype = f64});
  uniform_(x, -1, 1);
  return Variable(x, true);
}

}  // namespace

TEST_CASE("functional: jacobian, hessian and their products agree with each other and with formulas") {
  manual_seed(5);
  const Tensor a = randn({3, 3}, {.dtype = f64});
  const Variable x = random_f64({3}), z = random_f64({2, 2});
  const auto quadratic = [&](const Inputs& in) { return sum(mul(in[0], matmul(a, in[0]))); };
  const auto both = [&](const Inputs& in) { return mul(matmul(a, tanh(in[0])), sum(square(in[1]))); };
  // The gradient and Hessian of x'Ax: (A + A') x and A + A'.
  const Tensor symmetric = add(a, a.t());
  CHECK(max_difference(jacobian(quadratic, {x})[0].tensor(), matmul(symmetric, x.tensor())) < 1e-12);
  CHECK(max_difference(hessian(quadratic, {x})[0][0].tensor(), symmetric) < 1e-12);

  const auto j = jacobian(both, {x, z});
  CHECK(j[0].shape() == Shape{3, 3});
  CHECK(j[1].shape() == Shape{3, 2, 2});
  const Tensor v = randn({3}, {.dtype = f64}), vx = randn({3}, {.dtype = f64}), vz = randn({2, 2}, {.dtype = f64});
  const auto back = vjp(both, {x, z}, v);
  CHECK(max_difference(back.value.tensor(), both({x, z}).tensor()) == 0);
  CHECK(max_difference(back.products[0].tensor(), matmul(v, j[0].tensor())) < 1e-12);
  CHECK(max_difference(back.products[1].tensor(), einsum("i,ijk->jk", {v, j[1].tensor()})) < 1e-12);
  const Tensor forward = jvp(both, {x, z}, {vx, vz}).products[0].tensor();
  CHECK(max_difference(forward, add(matmul(j[0].tensor(), vx), einsum("ijk,jk->i", {j[1].tensor(), vz}))) < 1e-12);

  const auto scalar = [&](const Inputs& in) { return sum(square(both(in))); };
  const auto h = hessian(scalar, {x, z});
  CHECK(h[1][0].shape() == Shape{2, 2, 3});
  CHECK(max_difference(h[1][0].tensor(), h[0][1].tensor().permute({1, 2, 0})) < 1e-10);
  const auto product = hvp(scalar, {x, z}, {vx, vz});
  CHECK(max_difference(product.products[0].tensor(),
                       add(matmul(h[0][0].tensor(), vx), einsum("ijk,jk->i", {h[0][1].tensor(), vz}))) < 1e-10);
  // Hessians can be differentiated again: d/dx of the sum of the Hessian of sum x^3 is 6.
  const auto cube = [](const Inputs& in) { return sum(in[0] * in[0] * in[0]); };
  const Variable sum_of_hessian = sum(hessian(cube, {x}, {.create_graph = true})[0][0]);
  CHECK(max_difference(grad(sum_of_hessian, {x})[0].tensor(), full({3}, 6, {.dtype = f64})) < 1e-12);
  // Linear functions, and functions that do not depend on an input.
  CHECK(max_difference(hessian([](const Inputs& in) { return sum(in[0]); }, {x})[0][0].tensor(),
                       zeros({3, 3}, {.dtype = f64})) == 0);
  CHECK(jacobian([](const Inputs& in) { return in[0] * 2.0; }, {x, z})[1].shape() == Shape{3, 2, 2});
  CHECK(jacobian([](const Inputs& in) { return in[0].narrow(0, 0, 0); }, {x})[0].shape() == Shape{0, 3});
  CHECK_ERROR_IS(hessian(both, {x, z}), "[hessian] expected a function that returns one element, got (3); sum() it");
  CHECK_ERROR_IS(hessian([](const Inputs& in) { return in[0] * 2.0; }, {ones({3, 4})}),
                 "[hessian] expected a function that returns one element, got (3, 4); sum() it");
  CHECK_ERROR_IS(hvp(scalar, {x, z}, {vx}), "[hvp] expected a vector for each of 2 inputs, got 1; pass one per input");
  CHECK_ERROR_BEGINS(jvp(quadratic, {x}, {vz}), "[jvp] expected vector 0 like its input, f64 (3), got f64");
  CHECK_ERROR_IS(jacobian(both, {}), "[jacobian] expected at least one input, got none; pass some");
}
