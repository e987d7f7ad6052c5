// Rows that lie apart: products into them and cross entropy of them give what dense rows give, and nothing touches the
// padding.
#include <doctest/doctest.h>

#include "tensor/padded.h"
#include "tensor/random.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

constexpr int64_t vocabularies[] = {1, 63, 64, 65, 200, 32003, 50257, 128256};
constexpr double untouched = 7;

/// A matrix with padded rows; all memory is `untouched`.
struct Room {
  Room(int64_t rows, int64_t columns, DType dtype)
      : entire(full({rows, padded_columns(columns)}, untouched, {.dtype = dtype})),
        matrix(entire.narrow(1, 0, columns)) {}
  Tensor entire, matrix;

  bool padding_is_untouched() const {
    const Tensor padding = entire.narrow(1, matrix.size(1), entire.size(1) - matrix.size(1));
    return padding.numel() == 0 || equal(padding, full(padding.shape(), untouched, {.dtype = entire.dtype()}));
  }
};

/// True for the same bits on the CPU; nearly the same numbers suffice on a GPU, whose kernels depend on the layout.
bool same(const Tensor& a, const Tensor& b, double tolerance = 1e-5) {
  if (a.device().is_cpu()) return equal(a, b);
  return a.shape() == b.shape() && allclose(a.to(f64), b.to(f64), tolerance, tolerance);
}

double rounding(DType dtype) { return dtype == bf16 ? 1e-2 : dtype == f16 ? 2e-3 : 1e-5; }

}  // namespace

TEST_CASE("padded rows: where they lie") {
  for (const int64_t n : vocabularies) {
    CAPTURE(n);
    CHECK(padded_columns(n) % 64 == 0);
    CHECK(padded_columns(n) - n < 64);
    const Tensor x = empty_padded({2, 3, n}, {.dtype = bf16});
    CHECK(x.shape() == Shape{2, 3, n});
    CHECK(x.strides()[1] == padded_columns(n));
    const Tensor rows = x.view({6, n});
    CHECK(has_full_rows(rows));
    CHECK(row_step(rows) == padded_columns(n));
    CHECK(is_padded(rows) == (n % 64 != 0));
    CHECK(is_padded(rows.narrow(0, 2, 3)) == (n % 64 != 0));
    CHECK(empty_padded({4, n}).is_exclusive());
  }
  CHECK(padded_columns(0) == 0);
  CHECK(empty_padded({3, 0}).numel() == 0);
  CHECK_ERROR(empty_padded({}), "[empty_padded] expected at least 1 dim, got a scalar");
  const Tensor plain = empty({6, 128});
  CHECK(has_full_rows(plain.narrow(1, 3, 100)));
  CHECK(!is_padded(plain.narrow(1, 3, 100)));  // its last row has no padding of its own
  CHECK(!has_full_rows(plain.t()));
  CHECK(!has_full_rows(plain.narrow(0, 0, 1).expand({6, 128})));
  CHECK(!has_full_rows(plain.slice(1, 0, 128, 2)));
}

TEST_CASE("padded rows: products into them") {
  for (const DType dtype : {f32, f64, f16, bf16})
    for (const int64_t n : {1, 63, 64, 65, 200, 5003})
      for (const int64_t rows : {1, 2, 37}) {
        INFO("dtype ", dtype, ", n ", n, ", rows ", rows);
        manual_seed(uint64_t(n));
        const Tensor x = randn({rows, 24}).to(dtype), w = randn({n, 24}).to(dtype), dense = matmul(x, w.t());
        const Room room(rows, n, dtype);
        matmul_into(room.matrix, x, w.t());
        CHECK(same(room.matrix, dense, rounding(dtype)));
        CHECK(room.padding_is_untouched());
        const Tensor twice = dense.clone();
        matmul_into(twice, x, w.t(), true);
        matmul_into(room.matrix, x, w.t(), true);
        CHECK(same(room.matrix, twice, 2 * rounding(dtype)));
        CHECK(room.padding_is_untouched());
        const Tensor batch = linear_padded(x.view({1, rows, 24}), w);
        CHECK(batch.shape() == Shape{1, rows, n});
        CHECK(same(batch, linear(x.view({1, rows, 24}), w), rounding(dtype)));
        // the products of the gradients read padded rows
        CHECK(same(matmul(batch.view({rows, n}), w), matmul(dense, w), 30 * rounding(dtype)));
        CHECK(same(matmul(batch.view({rows, n}).t(), x), matmul(dense.t(), x), 30 * rounding(dtype)));
      }
  CHECK_ERROR(matmul_into(empty({4, 3}).t(), empty({3, 5}), empty({5, 4})),
              "an (M, N) of contiguous rows, got (3, 5), (5, 4) and (3, 4) with strides (1, 3)");
  CHECK_ERROR(linear_padded(empty({3, 5}), empty({4, 6})), "[linear] expected an input (..., 6)");
}

TEST_CASE("padded rows: cross entropy and its gradient") {
  for (const DType dtype : {f32, f64, f16, bf16})
    for (const int64_t n : vocabularies)
      for (const double smoothing : {0., 0.1}) {
        const int64_t rows = n > 1000 ? 3 : 21;
        INFO("dtype ", dtype, ", n ", n, ", smoothing ", smoothing);
        manual_seed(uint64_t(n));
        const Tensor x = mul_scalar(randn({rows, n}), 3).to(dtype), target = randint(0, n, {rows}),
                     weight = add_scalar(rand({n}), 0.5).to(dtype);
        const CrossEntropyArgs args{.ignore_index = target.to(cpu).to_vector<int64_t>()[1],
                                    .label_smoothing = smoothing};
        const CrossEntropyRows dense = cross_entropy_rows(x, target, weight, args);
        const Tensor upstream = rand({rows}).to(dense.loss.dtype());
        const Tensor grad = cross_entropy_rows_grad(upstream, x, dense.lse, target, weight, args, false);

        Room room(rows, n, dtype);
        room.matrix.copy_(x);
        const CrossEntropyRows got = cross_entropy_rows(room.matrix, target, weight, args);
        CHECK(same(got.loss, dense.loss));
        CHECK(same(got.lse, dense.lse));
        const Tensor apart = cross_entropy_rows_grad(upstream, room.matrix, got.lse, target, weight, args, false);
        CHECK(apart.strides() == room.matrix.strides());  // as products want it
        CHECK(same(apart, grad, rounding(dtype)));
        CHECK(equal(room.matrix, x));
        const Tensor losses = empty_like(dense.loss);
        cross_entropy_rows_into(losses, upstream, room.matrix, target, weight, args);
        CHECK(same(losses, dense.loss));
        CHECK(same(room.matrix, grad, rounding(dtype)));
        CHECK(room.padding_is_untouched());
        room.matrix.copy_(x);
        cross_entropy_rows_grad(upstream, room.matrix, got.lse, target, weight, args, true);
        CHECK(same(room.matrix, grad, rounding(dtype)));
        CHECK(room.padding_is_untouched());
      }
}

TEST_CASE("cross entropy: rows any distance apart, and columns") {
  manual_seed(1);
  const Tensor wide = randn({5, 40}), target = randint(0, 8, {5});
  for (const Tensor& x : {wide.narrow(1, 3, 8), wide.narrow(1, 0, 8), wide.narrow(1, 0, 5).t().narrow(1, 0, 5),
                          wide.slice(1, 0, 16, 2), wide.narrow(0, 0, 1).narrow(1, 0, 8).expand({5, 8})}) {
    CAPTURE(x.strides());
    const Tensor t = minimum(target, full_like(target, x.size(1) - 1));
    const CrossEntropyRows got = cross_entropy_rows(x, t), dense = cross_entropy_rows(x.clone(), t);
    CHECK(same(got.loss, dense.loss));
    const Tensor grad = cross_entropy_rows_grad(ones({5}), x, got.lse, t, {}, {}, false);
    CHECK(grad.is_contiguous());
    CHECK(same(grad, cross_entropy_rows_grad(ones({5}), x.clone(), dense.lse, t, {}, {}, false)));
  }
  const Tensor t = zeros({8}, {.dtype = i64}), column = wide.narrow(1, 0, 8).t();
  CHECK_ERROR(cross_entropy_rows_grad(ones({8}), column, ones({8}), t, {}, {}, true),
              "[cross_entropy_grad] expected contiguous rows of logits to write into, got strides (1, 40)");
  CHECK_ERROR(cross_entropy_rows_into(ones({8}), ones({8}), column, t, {}, {}), "contiguous losses and rows of logits");
}
