// linalg:: on tensors: properties of decompositions for every shape, layout, batch and both dtypes; edge cases, errors,
// and the same bits for any number of threads. Values from PyTorch are golden cases (golden/linalg.safetensors).
#include "extensions/linear_algebra/linalg.h"

#include <doctest/doctest.h>

#include <cmath>

#include "extensions/operations/operations.h"
#include "tests/messages.h"
#include "tests/threads.h"
#include "tests/tolerances.h"

using namespace lockstep;
namespace la = lockstep::linalg;

namespace {

Tensor t(const Tensor& x) { return x.transpose(-2, -1); }
double worst(const Tensor& a, const Tensor& b) {
  CHECK(a.shape() == b.shape());
  return a.numel() == 0 ? 0 : max(abs(a - b)).item();
}
Tensor identity(int64_t n, const Tensor& like) { return eye(n, -1, {like.dtype(), like.device()}); }
Tensor sampled(const Shape& shape, DType dtype) { return randn(shape, {.dtype = dtype}); }
/// A symmetric matrix with eigenvalues of at least 0.5.
Tensor positive(const Shape& batch, int64_t n, DType dtype) {
  Shape shape = batch;
  shape.push_back(n), shape.push_back(n);
  const Tensor x = sampled(shape, dtype);
  return matmul(x, t(x)) + identity(n, x) * 0.5;
}
double tolerance(DType dtype, int64_t n) { return (dtype == f32 ? 3e-6 : 1e-14) * double(std::max<int64_t>(n, 1)); }

const std::pair<int64_t, int64_t> shapes[] = {{1, 1},   {2, 2},   {5, 3},   {3, 5}, {1, 7}, {7, 1}, {17, 17},
                                              {64, 20}, {20, 64}, {40, 37}, {0, 3}, {3, 0}, {0, 0}};
const Shape batches[] = {{}, {2}, {3, 1, 2}, {0}};

/// Calls fn(a, m, n) for matrices of all shapes, batches and dtypes, and for strided views of each.
template <class Fn> void each_matrix(Fn fn) {
  for (const DType dtype : {f32, f64})
    for (const Shape& batch : batches)
      for (const auto& [m, n] : shapes) {
        Shape shape = batch, turned = batch;
        shape.push_back(m), shape.push_back(n);
        turned.push_back(n), turned.push_back(m);
        INFO("matrices ", str(shape), " of ", str(dtype));
        fn(sampled(shape, dtype), m, n);
        fn(t(sampled(turned, dtype)), m, n);
      }
}

}  // namespace

TEST_CASE("linalg: qr gives orthogonal columns and a triangle, that make the matrix") {
  manual_seed(1);
  each_matrix([](const Tensor& a, int64_t m, int64_t n) {
    const double allowed = 10 * tolerance(a.dtype(), m + n);
    for (const auto mode : {la::QrMode::reduced, la::QrMode::complete}) {
      const auto [q, r] = la::qr(a, mode);
      const int64_t k = mode == la::QrMode::complete ? m : std::min(m, n);
      CHECK((q.size(-1) == k && r.size(-2) == k && r.size(-1) == n));
      CHECK(worst(matmul(q, r), a.contiguous()) < allowed);
      CHECK(worst(matmul(t(q), q), identity(k, a).expand(matmul(t(q), q).shape())) < allowed);
      CHECK(equal(triu(r), r));
      CHECK(equal(la::qr(a, la::QrMode::r).r, la::qr(a).r));
    }
  });
  // LAPACK's signs: an element of R's diagonal has the opposite sign of the element that it replaces.
  const Tensor a = Tensor::from<double>({3, 1, 4, 1}, {2, 2});
  CHECK(la::qr(a).r[0][0].item() == doctest::Approx(-5));
  CHECK(la::qr(-a).r[0][0].item() == doctest::Approx(5));
}

TEST_CASE("linalg: svd") {
  manual_seed(2);
  each_matrix([](const Tensor& a, int64_t m, int64_t n) {
    const int64_t k = std::min(m, n);
    const double allowed = 20 * tolerance(a.dtype(), m + n);
    const auto [u, s, vh] = la::svd(a, false);
    CHECK(worst(matmul(u * s.unsqueeze(-2), vh), a.contiguous()) < allowed);
    const auto full = la::svd(a);
    CHECK((full.u.size(-1) == m && full.vh.size(-2) == n));
    for (const auto& x : {u, t(vh), full.u, t(full.vh)}) {
      const Tensor square = matmul(t(x), x);
      CHECK(worst(square, identity(x.size(-1), a).expand(square.shape())) < allowed);
    }
    CHECK(worst(full.s, s) < allowed);
    CHECK(worst(la::svdvals(a), s) < allowed);
    if (k > 1 && s.numel() > 0) CHECK(min(s.narrow(-1, 0, k - 1) - s.narrow(-1, 1, k - 1)).item() >= 0);
    if (s.numel() > 0) CHECK(min(s).item() >= 0);
  });
  // Low rank, equal singular values, and values of very different size.
  const Tensor line = matmul(sampled({30, 1}, f64), sampled({1, 25}, f64));
  CHECK(la::svdvals(line)[1].item() < 1e-13 * la::svdvals(line)[0].item());
  CHECK(worst(la::svdvals(eye(33, -1, {.dtype = f64})), ones({33}, {.dtype = f64})) < 1e-15);
  CHECK(worst(la::svdvals(zeros({20, 20})), zeros({20})) == 0);
  // Clusters of equal values and zeros, graded matrices in both directions, low ranks, and values at the limits of the
  // dtype.
  for (const DType dtype : {f32, f64})
    for (const int64_t n : {2, 3, 16, 33, 70}) {
      const TensorOptions o{.dtype = dtype};
      const Tensor q = la::qr(sampled({n, n}, dtype)).q, steps = arange(0, double(n), 1, o), ladder = exp(steps * -0.4);
      const Tensor thirds = cos(steps * 2.0943951023931953) + 0.5,
                   band = triu(ones({n, n}, o)) - triu(ones({n, n}, o), 2);
      Tensor broken = band.clone();
      broken[n / 2][n / 2].fill_(0);
      const Tensor graded = ladder.unsqueeze(1) * ladder * (sampled({n, n}, dtype) * 0.1 + 1.0);
      const Tensor matrices[] = {q,
                                 q * thirds,
                                 q * zeros({n}, o),
                                 ones({n, n}, o),
                                 band,
                                 broken,
                                 band - eye(n, -1, o),
                                 graded,
                                 flip(graded, {0, 1}),
                                 triu(full({n, n}, -0.9, o), 1) + eye(n, -1, o),
                                 sampled({n, n}, dtype) * 1e-30,
                                 sampled({n, n}, dtype) * 1e30};
      for (const Tensor& a : matrices) {
        const auto [u, s, vh] = la::svd(a);
        const double allowed = 4 * tolerance(dtype, n);
        CHECK(worst(matmul(u * s.unsqueeze(-2), vh), a) <= allowed * max(abs(a)).item());
        CHECK(worst(matmul(t(u), u), identity(n, a)) < allowed);
        CHECK(worst(matmul(vh, t(vh)), identity(n, a)) < allowed);
        CHECK(worst(la::svdvals(a), s) <= allowed * max(s).item());
        CHECK(min(s).item() >= 0);
        const auto [q2, r] = la::qr(a);
        CHECK(worst(matmul(q2, r), a) <= allowed * max(abs(a)).item());
        CHECK(worst(matmul(t(q2), q2), identity(n, a)) < allowed);
        const Tensor both = a + t(a);
        const auto [values, vectors] = la::eigh(both);
        CHECK(worst(matmul(vectors * values.unsqueeze(-2), t(vectors)), both) <= allowed * max(abs(both)).item());
        CHECK(worst(matmul(t(vectors), vectors), identity(n, a)) <
              (a.device().is_cpu() ? allowed : testing::tolerance(testing::Near::eigenvectors, dtype) * double(n)));
        CHECK(worst(la::eigvalsh(both), values) <= allowed * max(abs(both)).item());
      }
    }
  const Tensor apart = Tensor::from<double>({1e200, 1, 1e-200, 0}, {2, 2});
  CHECK(la::svdvals(apart)[0].item() == doctest::Approx(1e200));
}

TEST_CASE("linalg: eigh and cholesky read one triangle") {
  manual_seed(3);
  for (const DType dtype : {f32, f64})
    for (const Shape& batch : batches)
      for (const int64_t n : {0, 1, 2, 5, 33}) {
        INFO(n, " rows of ", str(dtype));
        const Tensor a = positive(batch, n, dtype);
        const double allowed = 100 * tolerance(dtype, n * n);
        const auto [values, vectors] = la::eigh(a);
        CHECK(worst(matmul(vectors * values.unsqueeze(-2), t(vectors)), a) < allowed);
        if (n > 1 && values.numel() > 0)
          CHECK(min(values.narrow(-1, 1, n - 1) - values.narrow(-1, 0, n - 1)).item() >= 0);
        CHECK(worst(la::eigvalsh(a), values) < allowed);
        const Tensor l = la::cholesky(a), u = la::cholesky(a, true);
        CHECK((equal(tril(l), l) && equal(triu(u), u)));
        CHECK(worst(matmul(l, t(l)), a) < allowed);
        CHECK(worst(matmul(t(u), u), a) < allowed);
        // The other triangle is ignored.
        const Tensor low = tril(a) + triu(full_like(a, 7), 1), high = triu(a) + tril(full_like(a, 7), -1);
        CHECK((equal(la::cholesky(low), l) && equal(la::eigvalsh(low), la::eigvalsh(a))));
        CHECK((equal(la::cholesky(high, true), u) && worst(la::eigvalsh(high, true), values) < allowed));
      }
}

TEST_CASE("linalg: equations, with all that broadcasts") {
  manual_seed(4);
  struct {
    Shape a, b, x;
    bool left = true;
  } rows[] = {{{3, 3}, {3}, {3}},
              {{3, 3}, {3, 2}, {3, 2}},
              {{2, 3, 3}, {2, 3}, {2, 3}},
              {{2, 3, 3}, {3, 4}, {2, 3, 4}},
              {{3, 3}, {5, 3, 2}, {5, 3, 2}},
              {{4, 1, 2, 2}, {3, 2, 5}, {4, 3, 2, 5}},
              {{3, 3}, {2, 3}, {2, 3}, false},
              {{2, 3, 3}, {4, 3}, {2, 4, 3}, false},
              {{0, 3, 3}, {0, 3, 2}, {0, 3, 2}},
              {{0, 0}, {0, 2}, {0, 2}},
              {{2, 0, 0}, {2, 0, 3}, {2, 0, 3}},
              {{3, 3}, {3, 0}, {3, 0}},
              {{37, 37}, {37, 5}, {37, 5}}};
  for (const DType dtype : {f32, f64})
    for (const auto& row : rows) {
      INFO("a ", str(row.a), ", b ", str(row.b));
      const int64_t n = row.a.back();
      const Tensor a = sampled(row.a, dtype) + identity(n, sampled({1}, dtype)) * 4.0, b = sampled(row.b, dtype);
      const double allowed = 100 * tolerance(dtype, n);
      const Tensor x = la::solve(a, b, row.left);
      CHECK(x.shape() == row.x);
      const bool is_vector = b.dim() == a.dim() - 1 && x.dim() == b.dim() && row.left;
      const Tensor wide = is_vector ? x.unsqueeze(-1) : x, right = is_vector ? b.unsqueeze(-1) : b;
      const Tensor made = row.left ? matmul(a, wide) : matmul(wide, a);
      CHECK(worst(made, right.expand(made.shape())) < allowed);
      if (is_vector) continue;
      for (const bool upper : {false, true})
        for (const bool unit : {false, true}) {
          Tensor triangle = upper ? triu(a) : tril(a);
          if (unit) triangle = triangle - triangle * identity(n, a) + identity(n, a);
          const Tensor y = la::solve_triangular(a * 0.3, b, upper, row.left, unit);
          Tensor scaled = upper ? triu(a * 0.3, unit) : tril(a * 0.3, -int64_t(unit));
          if (unit) scaled = scaled + identity(n, a);
          const Tensor back = row.left ? matmul(scaled, y) : matmul(y, scaled);
          CHECK(worst(back, b.expand(back.shape())) < 100 * allowed);
        }
      const Tensor inverse = la::inv(a), one = matmul(a, inverse);
      CHECK(worst(one, identity(n, a).expand(one.shape())) < allowed);
      CHECK(worst(la::matrix_power(a, -2), matmul(inverse, inverse)) < allowed);
      CHECK(worst(la::matrix_power(a, 0), identity(n, a).expand(a.shape())) == 0);
      CHECK(worst(la::matrix_power(a * 0.2, 5), matmul(matmul(a, matmul(a, a)), matmul(a, a)) * std::pow(0.2, 5)) <
            100 * allowed);
    }
}

TEST_CASE("linalg: determinants, also of singular matrices and of none") {
  const Tensor a = Tensor::from<double>({1, 2, 3, 4, 0, 0, 0, 0, 0, 1, 1, 0}, {3, 2, 2});
  CHECK(worst(la::det(a), Tensor::from<double>({-2, 0, -1})) < 1e-15);
  const auto [sign, log_abs] = la::slogdet(a);
  CHECK(sign.to_vector<double>() == std::vector<double>{-1, 0, -1});
  CHECK(log_abs[0].item() == doctest::Approx(std::log(2)));
  CHECK(log_abs[1].item() == -INFINITY);
  CHECK(la::det(zeros({2, 0, 0})).to_vector<float>() == std::vector<float>{1, 1});
  CHECK(la::slogdet(zeros({0, 0})).logabsdet.item() == 0);
  // The product of the diagonal overflows.
  const Tensor large = identity(200, ones({1})) * 100.0;
  CHECK(la::det(large).item() == INFINITY);
  CHECK(la::slogdet(large).logabsdet.item() == doctest::Approx(200 * std::log(100.0)));
}

TEST_CASE("linalg: pinv, lstsq, rank and norms") {
  manual_seed(5);
  for (const DType dtype : {f32, f64})
    for (const auto& [m, n] : shapes) {
      INFO(m, " x ", n, " of ", str(dtype));
      const Tensor a = sampled({2, m, n}, dtype), p = la::pinv(a);
      const double allowed = 1000 * tolerance(dtype, m + n);
      CHECK(worst(matmul(matmul(a, p), a), a) < allowed);
      CHECK(worst(matmul(matmul(p, a), p), p) < allowed);
      CHECK(worst(matmul(a, p), t(matmul(a, p))) < allowed);
      const Tensor b = sampled({2, m, 3}, dtype);
      const auto made = la::lstsq(a, b);
      CHECK(made.solution.shape() == Shape({2, n, 3}));
      CHECK(worst(matmul(t(a), matmul(a, made.solution) - b), zeros_like(made.solution)) < allowed);
      CHECK(made.rank.to_vector<int64_t>() == std::vector<int64_t>(2, std::min(m, n)));
      if (m > n) CHECK(worst(made.residuals, sum(square(matmul(a, made.solution) - b), {-2})) < allowed);
      else CHECK(made.residuals.shape() == Shape({0}));
      CHECK(la::lstsq(a, b.select(2, 0)).solution.shape() == Shape({2, n}));
    }
  const Tensor two = matmul(sampled({9, 2}, f64), sampled({2, 6}, f64)), symmetric = matmul(two, t(two));
  CHECK(la::matrix_rank(two).item<int64_t>() == 2);
  CHECK(la::matrix_rank(two, 1e6).item<int64_t>() == 0);
  CHECK(la::matrix_rank(eye(5, -1, {.dtype = f64}) * -1e-3, 1e-2, 0.0, true).item<int64_t>() == 0);
  CHECK(la::matrix_rank(symmetric, {}, 1e-10, true).item<int64_t>() == 2);
  CHECK(worst(la::pinv(symmetric, {}, 1e-10, true), la::pinv(symmetric, {}, 1e-10)) < 1e-9);
  CHECK(la::lstsq(two, sampled({9}, f64)).residuals.numel() == 0);  // rank-deficient
  CHECK(la::cond(eye(3)).item() == 1);
  CHECK(la::cond(zeros({2, 2}), 1).item() == INFINITY);
  CHECK(la::cond(zeros({2, 2}), "fro").item() == INFINITY);
  CHECK(la::matrix_norm(ones({2, 3}), 1).item() == 2);
  CHECK(la::matrix_norm(ones({2, 3}), INFINITY).item() == 3);
  CHECK(la::matrix_norm(ones({2, 5, 3}), "nuc", {2, 0}, true).shape() == Shape({1, 5, 1}));
  CHECK(la::vector_norm(Tensor::from<float>({3, 0, 4}), 0).item() == 2);
  CHECK(la::vector_norm(Tensor::from<float>({3, 0, 4}), -1).item() == 0);
}

TEST_CASE("linalg: matrix_exp") {
  manual_seed(6);
  const double angle = 200;  // needs many squarings
  const Tensor rotation = Tensor::from<double>({0, -angle, angle, 0}, {2, 2});
  CHECK(worst(la::matrix_exp(rotation),
              Tensor::from<double>({std::cos(angle), -std::sin(angle), std::sin(angle), std::cos(angle)}, {2, 2})) <
        1e-11);
  const Tensor up = Tensor::from<double>({0, 1, 0, 0}, {2, 2});
  CHECK(worst(la::matrix_exp(up), up + eye(2, -1, {.dtype = f64})) < 1e-15);
  const Tensor a = sampled({3, 6, 6}, f64), one = matmul(la::matrix_exp(a), la::matrix_exp(-a));
  CHECK(worst(one, eye(6, -1, {.dtype = f64}).expand(one.shape())) < 1e-10);
  CHECK(worst(la::matrix_exp(a.to(f32)).to(f64), la::matrix_exp(a)) < 1e-3);
  CHECK(std::isnan(la::matrix_exp(full({1, 1}, INFINITY)).item()));
  CHECK(la::matrix_exp(zeros({2, 0, 0})).shape() == Shape({2, 0, 0}));
}

// On a device a batch of small matrices is one call and larger ones are a loop; the results must agree.
TEST_CASE("linalg: a batch gives the results of its single matrices, with any strides") {
  manual_seed(8);
  for (const DType dtype : {f32, f64})
    for (const int64_t n : {1, 2, 7, 32, 33}) {
      INFO(n, " rows of ", str(dtype));
      const double allowed = 20 * tolerance(dtype, n);
      const Tensor packed =
          positive({3}, n, dtype) * (1.0 / double(n)) + eye(n, -1, {.dtype = dtype}) + sampled({3, n, n}, dtype) * 0.02;
      Tensor strided = zeros({3, 2 * n, 3 * n}, {.dtype = dtype}).slice(1, 0, 2 * n, 2).slice(2, 0, 3 * n, 3);
      strided.copy_(packed);
      const Tensor repeated = packed.select(0, 1).unsqueeze(0).expand({3, n, n});
      const Tensor b = sampled({3, n, 5}, dtype);
      for (const Tensor& a : {packed, strided, repeated, t(strided)}) {
        const Tensor before = a.clone();
        const auto [sign, log_abs] = la::slogdet(a);
        const auto [u, s, vh] = la::svd(a);
        const auto [values, vectors] = la::eigh(a);
        const auto [q, r] = la::qr(a);
        const Tensor x = la::solve(a, b), inverse = la::inv(a), l = la::cholesky(a), d = la::det(a);
        const Tensor y = la::solve_triangular(a, b, true);
        CHECK(equal(a, before));
        for (int64_t i = 0; i < 3; ++i) {
          const Tensor one = a.select(0, i), right = b.select(0, i);
          CHECK(worst(x.select(0, i), la::solve(one, right)) < allowed);
          CHECK(worst(y.select(0, i), la::solve_triangular(one, right, true)) < allowed);
          CHECK(worst(inverse.select(0, i), la::inv(one)) < allowed);
          CHECK(worst(l.select(0, i), la::cholesky(one)) < allowed);
          CHECK(worst(r.select(0, i), la::qr(one).r) < allowed);
          CHECK(worst(s.select(0, i), la::svdvals(one)) < allowed);
          CHECK(worst(values.select(0, i), la::eigvalsh(one)) < allowed);
          CHECK(worst(log_abs.select(0, i), la::slogdet(one).logabsdet) < allowed);
          CHECK(d.select(0, i).item() == doctest::Approx(la::det(one).item()).epsilon(allowed));
          CHECK(sign.select(0, i).item() == 1);
        }
        CHECK(worst(matmul(u * s.unsqueeze(-2), vh), a) < allowed);
        CHECK(worst(matmul(vectors * values.unsqueeze(-2), t(vectors)), tril(a) + t(tril(a, -1))) < allowed);
        CHECK(worst(matmul(q, r), a) < allowed);
      }
    }
}

TEST_CASE("linalg: one matrix of a batch that fails is named, and the others are right") {
  manual_seed(9);
  for (const int64_t n : {1, 3, 33, 515})
    for (const DType dtype : {f32, f64}) {
      INFO(n, " rows of ", str(dtype));
      const Tensor one = eye(n, -1, {.dtype = dtype});
      Tensor a = stack({one * 2.0, one, -one}).clone();
      a[1][n / 2][n / 2].fill_(0);
      const std::string place = str(n / 2 + 1);
      const auto contains_both = [](const std::string& said, const std::string& first, const std::string& second) {
        CAPTURE(said);
        CHECK((contains(said, first) && contains(said, second)));
      };
      contains_both(message([&] { la::inv(a); }), "batch entry (1) that", "pivot " + place + " of");
      contains_both(message([&] {
                      la::solve(a, ones({3, n, 2}, {.dtype = dtype}));
                    }),
                    "batch entry (1) that", "pivot " + place + " of");
      contains_both(message([&] { la::cholesky(a); }), "batch entry (1) whose", "of order " + place + " is");
      const auto [inverse, info] = la::inv_ex(a);
      CHECK(info.to_vector<int64_t>() == std::vector<int64_t>{0, n / 2 + 1, 0});
      CHECK(equal(inverse[0], one * 0.5));
      CHECK(worst(inverse[2], -one) == 0);
      CHECK(la::slogdet(a).sign.to_vector<double>() == std::vector<double>{1, 0, n % 2 ? -1.0 : 1.0});
      a[1].fill_(NAN);
      contains_both(message([&] { la::cholesky(a); }), "batch entry (1) whose", "of order 1 is");
      if (n > 33) continue;
      contains_both(message([&] { la::svd(a); }), "[svd]", "batch entry (1) ");
      contains_both(message([&] { la::eigh(a); }), "[eigh]", "batch entry (1) ");
    }
  for (const Shape& none : {Shape{0, 4, 4}, Shape{2, 0, 3, 3}}) {
    CHECK(la::inv(zeros(none)).shape() == none);
    CHECK(la::inv_ex(zeros(none)).info.numel() == 0);
    CHECK(la::det(zeros(none)).numel() == 0);
  }
}

TEST_CASE("linalg: the bits do not depend on the number of threads") {
  manual_seed(7);
  const Tensor a = sampled({300, 9, 9}, f32), large = sampled({150, 100}, f32), s = positive({40}, 20, f64);
  const Tensor one = matmul(t(large), large);
  check_threads([&] {
    const auto [u, d, vh] = la::svd(large);  // vectors by several threads
    const auto [q, r] = la::qr(a);
    const auto [values, vectors] = la::eigh(s);
    const Tensor turned = la::eigh(one).vectors;
    return std::vector{la::inv(a),      la::det(a),       u, d, vh, q, r, values, vectors, turned,
                       la::cholesky(s), la::matrix_exp(a)};
  });
}

TEST_CASE("linalg: errors name the expected value") {
  const Tensor a = zeros({2, 3, 3}), one = ones({3, 3});
  const Tensor some = stack({eye(3), eye(3), ones({3, 3}), eye(3)}).view({2, 2, 3, 3});
  const Tensor nan = full({2, 3, 3}, NAN);
  CHECK_ERROR(la::inv(some), "[inv] expected invertible matrices, got batch entry (1, 0) that is singular: pivot 2 of");
  CHECK_ERROR(la::inv(one), "got the matrix that is singular");
  CHECK_ERROR(la::solve(some, ones({3, 1})), "[solve] expected invertible matrices, got batch entry (1, 0)");
  CHECK_ERROR(la::cholesky(-some),
              "[cholesky] expected positive definite matrices, got batch entry (0, 0) whose leading minor of order 1");
  CHECK_ERROR(la::cholesky(some), "(1, 0) whose leading minor of order 2");
  CHECK_ERROR(la::svd(nan), "[svd] expected finite matrices, got batch entry (0)");
  CHECK_ERROR(la::eigvalsh(nan), "[eigvalsh] expected finite matrices");
  CHECK_ERROR(la::inv(zeros({2, 3})), "[inv] expected square matrices (..., n, n), got (2, 3)");
  CHECK_ERROR(la::inv(zeros({3})), "[inv] expected matrices (..., m, n), got (3)");
  CHECK_ERROR(la::qr(one.to(bf16)), "[qr] expected f32 or f64, got bf16");
  CHECK_ERROR(la::solve(one, ones({2, 3})), "[solve] expected b with 3 rows");
  CHECK_ERROR(la::solve(one, ones({3, 1}, {.dtype = f64})), "[solve] expected one dtype");
  CHECK_ERROR(la::solve(a, ones({5, 3, 1})), "[solve]");
  CHECK_ERROR(la::solve(one, ones({3}), false), "[solve] expected matrices b");
  CHECK_ERROR(la::lstsq(a, ones({2, 4, 1})), "[lstsq] expected a (..., m, n) and b");
  CHECK_ERROR(la::matrix_norm(a, 3), "[matrix_norm] expected an order of 1, -1");
  CHECK_ERROR(la::matrix_norm(a, "two"), "[matrix_norm] expected the order fro or nuc");
  CHECK_ERROR(la::matrix_norm(a, 1, {0, 0}), "[matrix_norm] expected two different dims");
  CHECK_ERROR(la::cond(zeros({2, 3}), 1), "[cond] expected square");
  CHECK_ERROR(la::pinv(a, -1.0), "[linalg] expected tolerances (rcond, atol, rtol) >= 0");
  CHECK_ERROR(la::matrix_power(zeros({2, 3}), 2), "[matrix_power] expected square");
  CHECK(la::inv_ex(some).info.to_vector<int64_t>() == std::vector<int64_t>{0, 0, 2, 0});
}
