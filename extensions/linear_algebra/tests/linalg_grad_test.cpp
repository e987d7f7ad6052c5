// linalg:: on variables: gradients against finite differences for every function, singular matrices, gradients that are
// rejected, and the same values as on tensors. PyTorch's gradients are golden cases (golden/linalg.safetensors).
#include "extensions/linear_algebra/linalg.h"

#include <doctest/doctest.h>

#include <cmath>

#include "autograd/autocast.h"
#include "tests/autograd/check_gradient.h"
#include "tests/messages.h"

using namespace lockstep;
namespace la = lockstep::linalg;

namespace {

Variable t(const Variable& x) { return x.transpose(-2, -1); }
/// A symmetric positive definite matrix from any square one.
Variable positive(const Variable& x) { return matmul(x, t(x)) + Variable(eye(x.size(-1), -1, {.dtype = f64})) * 0.5; }
Variable regular(const Variable& x) { return x + Variable(eye(x.size(-1), -1, {.dtype = f64})) * 3.0; }

}  // namespace

TEST_CASE("linalg: gradients match finite differences") {
  manual_seed(8);
  using la::QrMode;
  CHECK_GRADIENTS(la::solve(regular(x[0]), x[1]), {3, 3}, {3, 2});
  CHECK_GRADIENTS(la::solve(regular(x[0]), x[1]), {3, 3}, {3});
  CHECK_GRADIENTS(la::solve(regular(x[0]), x[1]), {2, 3, 3}, {2, 3});
  CHECK_GRADIENTS(la::solve(regular(x[0]), x[1]), {4, 1, 2, 2}, {3, 2, 2});
  CHECK_GRADIENTS(la::solve(regular(x[0]), x[1], false), {2, 3, 3}, {4, 3});
  CHECK_GRADIENTS(la::solve_triangular(regular(x[0]), x[1], false), {2, 3, 3}, {3, 2});
  CHECK_GRADIENTS(la::solve_triangular(x[0], x[1], true, false, true), {3, 3}, {2, 2, 3});
  CHECK_GRADIENTS(la::inv(regular(x[0])), {2, 3, 3});
  CHECK_GRADIENTS(la::pinv(x[0]), {5, 3});
  CHECK_GRADIENTS(la::pinv(x[0]), {2, 2, 4});
  CHECK_GRADIENTS(la::pinv(matmul(x[0], x[1]), {}, 1e-9), {4, 2}, {2, 5});
  CHECK_GRADIENTS(la::pinv(x[0] + t(x[0]), {}, {}, true), {3, 3});
  CHECK_GRADIENTS(la::lstsq(x[0], x[1]).solution, {5, 2}, {5, 3});
  CHECK_GRADIENTS(la::lstsq(x[0], x[1]).solution, {2, 4}, {2});
  CHECK_GRADIENTS(la::lstsq(x[0], x[1]).residuals, {2, 5, 2}, {2, 5});
  CHECK_GRADIENTS(la::cholesky(positive(x[0])), {2, 3, 3});
  CHECK_GRADIENTS(la::cholesky(positive(x[0]), true), {3, 3});
  CHECK_GRADIENTS(la::qr(x[0]).q, {3, 3});
  CHECK_GRADIENTS(la::qr(x[0]).r, {3, 3});
  check_gradients("qr tall", {{2, 5, 3}}, [](auto& x) {
    const auto made = la::qr(x[0]);
    return cat(std::vector<Variable>{made.q, made.r}, -2);
  });
  check_gradients("qr wide", {{3, 5}}, [](auto& x) {
    const auto made = la::qr(x[0]);
    return cat(std::vector<Variable>{made.q, made.r}, -1);
  });
  CHECK_GRADIENTS(la::qr(x[0], QrMode::complete).q, {2, 2, 3});
  CHECK_GRADIENTS(square(la::svd(x[0], false).u), {5, 3});
  CHECK_GRADIENTS(square(la::svd(x[0], false).vh), {5, 3});
  check_gradients("svd full wide", {{2, 3, 4}}, [](auto& x) {
    const auto made = la::svd(x[0]);
    return matmul(square(made.u) * made.s.unsqueeze(-2), square(made.vh.narrow(-2, 0, 3)));
  });
  CHECK_GRADIENTS(la::svdvals(x[0]), {2, 4, 3});
  CHECK_GRADIENTS(la::eigh(x[0] + t(x[0])).values, {2, 3, 3});
  CHECK_GRADIENTS(square(la::eigh(x[0] + t(x[0])).vectors), {4, 4});
  check_gradients("eigh both", {{3, 3}}, [](auto& x) {
    const auto made = la::eigh(x[0] + t(x[0]), true);
    return square(made.vectors) * made.values;
  });
  CHECK_GRADIENTS(la::eigvalsh(x[0] + t(x[0])), {2, 3, 3});
  CHECK_GRADIENTS(la::det(x[0]), {2, 3, 3});
  CHECK_GRADIENT(la::det(cat(std::vector<Variable>{x[0], x[0].narrow(1, 0, 1)}, 1) * 1.0 + sum(x[1]) * 0.0), {3, 2},
                 {2, 3});
  CHECK_GRADIENTS(la::slogdet(x[0]).logabsdet, {2, 3, 3});
  CHECK_GRADIENTS(la::matrix_exp(x[0]), {2, 3, 3});
  CHECK_GRADIENTS(la::matrix_power(x[0], 5), {3, 3});
  CHECK_GRADIENTS(la::matrix_power(regular(x[0]), -2), {2, 2, 2});
  CHECK_GRADIENTS(la::matrix_norm(x[0]), {2, 3, 4});
  CHECK_GRADIENTS(la::matrix_norm(x[0], "nuc", {2, 0}, true), {3, 2, 4});
  CHECK_GRADIENTS(la::matrix_norm(x[0], 1), {2, 3, 4});
  CHECK_GRADIENTS(la::matrix_norm(x[0], -1, {0, 2}), {2, 3, 4});
  CHECK_GRADIENTS(la::matrix_norm(x[0], INFINITY), {2, 3, 4});
  CHECK_GRADIENTS(la::matrix_norm(x[0], -INFINITY, {1, 0}, true), {3, 4});
  CHECK_GRADIENTS(la::matrix_norm(x[0], 2), {2, 3, 4});
  CHECK_GRADIENTS(la::matrix_norm(x[0], -2), {2, 3, 4});
  CHECK_GRADIENTS(la::vector_norm(x[0], 2, {1}), {2, 3});
  CHECK_GRADIENTS(la::vector_norm(x[0], 1), {2, 3});
  CHECK_GRADIENTS(la::vector_norm(x[0], 3.5, {0}, true), {2, 3});
  CHECK_GRADIENTS(la::vector_norm(x[0], -2, {1}), {2, 3});
  CHECK_GRADIENTS(la::vector_norm(x[0], INFINITY, {1}), {2, 3});
  CHECK_GRADIENTS(la::cond(x[0]), {2, 3, 4});
  CHECK_GRADIENTS(la::cond(x[0], -2), {3, 3});
  CHECK_GRADIENTS(la::cond(regular(x[0]), 1), {3, 3});
  CHECK_GRADIENTS(la::cond(regular(x[0]), "nuc"), {3, 3});
}

TEST_CASE("linalg: gradients at the edges") {
  using List = std::vector<double>;
  // The determinant of a singular matrix still has a gradient: the cofactors.
  const Variable singular(Tensor::from<double>({1, 2, 2, 4, 0, 0, 0, 0}, {2, 2, 2}), true);
  sum(la::det(singular)).backward();
  const List expected{4, -2, -2, 1, 0, 0, 0, 0}, got = singular.grad().to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]));
  // Equal singular values are fine as long as no vectors are computed.
  const Variable one(eye(3, -1, {.dtype = f64}), true);
  sum(la::svdvals(one)).backward();
  CHECK(allclose(one.grad(), eye(3, -1, {.dtype = f64})));
  const Variable zero(zeros({4}, {.dtype = f64}), true);
  la::vector_norm(zero, 3).backward();
  CHECK(zero.grad().to_vector<double>() == List(4, 0));
  // Empty matrices give empty results, not errors.
  for (const Shape& shape : {Shape{0, 3, 3}, Shape{2, 0, 0}}) {
    const Variable x(zeros(shape), true);
    sum(la::inv(x)).backward();
    sum(la::det(x)).backward();
    sum(la::svd(x).u).backward();
    sum(la::matrix_exp(x)).backward();
    sum(la::qr(x).q).backward();
    sum(la::eigh(x).vectors).backward();
    CHECK(x.grad().shape() == shape);
  }
  const Variable tall(randn({4, 2}), true);
  const auto complete = la::qr(tall, la::QrMode::complete);
  CHECK_ERROR(sum(complete.q).backward(),
              "[qr] the gradient of matrices with more rows than columns needs mode reduced");
  const auto r = la::qr(tall, la::QrMode::r);
  CHECK_FALSE(r.q.defined());
  CHECK_ERROR(sum(r.r).backward(), "[qr] mode r has no gradient");
}

TEST_CASE("linalg: Variables give the same values as Tensors, under autocast too") {
  manual_seed(9);
  const Tensor a = randn({2, 4, 4}), b = randn({2, 4, 3}), s = matmul(a, a.transpose(1, 2)) + eye(4);
  const auto same = [](const Tensor& x, const Variable& y) { CHECK(equal(x, y.tensor())); };
  const auto check = [&] {
    const Variable va(a, true), vb(b, true), vs(s, true);
    same(la::solve(a, b), la::solve(va, vb));
    same(la::inv(a), la::inv(va));
    same(la::pinv(a), la::pinv(va));
    same(la::det(a), la::det(va));
    same(la::cholesky(s, true), la::cholesky(vs, true));
    same(la::svd(a).u, la::svd(va).u);
    same(la::eigh(s).vectors, la::eigh(vs).vectors);
    same(la::qr(b).r, la::qr(vb).r);
    same(la::matrix_power(a, 3), la::matrix_power(va, 3));
    same(la::lstsq(a, b).solution, la::lstsq(va, vb).solution);
    same(la::matrix_exp(a), la::matrix_exp(va));
    same(la::matrix_rank(a), Variable(la::matrix_rank(va)));
  };
  check();
  const Autocast autocast(bf16);
  check();
}
