// Indexing and joining, against plain loops.
#include <doctest/doctest.h>

#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

using Ints = std::vector<int64_t>;

Tensor ints(const Ints& values, const Shape& shape) { return Tensor::from(values, shape); }
Tensor ints(const Ints& values) { return Tensor::from(values, {int64_t(values.size())}); }
Ints list(const Tensor& x) { return x.to_vector<int64_t>(); }

}  // namespace

TEST_CASE("embedding and its gradient") {
  for (DType dtype : {f32, f64, f16, bf16}) {
    const Tensor weight = randn({211, 37}).to(dtype), index = randint(0, 211, {5, 60});
    const Tensor out = embedding(weight, index);
    CHECK(out.shape() == Shape{5, 60, 37});
    CHECK(equal(out[3][7], weight[index[3][7].item<int64_t>()]));

    const Tensor grad = randn({5, 60, 37}).to(dtype), sums = randn({211, 37}).to(dtype), before = sums.clone();
    embedding_grad_(sums, grad, index, 3);
    // The reference adds one row after the other; f16 and bf16 are summed in f32 and rounded once.
    Tensor expected = (dtype == f64 ? before : before.to(f32)).clone();
    const auto places = list(index);
    for (int64_t i = 0; i < 300; ++i) {
      if (places[size_t(i)] == 3) continue;
      const Tensor row = expected[places[size_t(i)]];
      row.copy_(row + grad.reshape({300, 37})[i].to(expected.dtype()));
    }
    CHECK(equal(sums, expected.to(dtype)));
  }
  const Tensor sums = zeros({3, 4}), view = zeros({4, 3}).t();
  embedding_grad_(sums, ones({5, 4}), ints({0, 2, 2, 2, 0}));
  CHECK(equal(sums, Tensor::from<float>({2, 2, 2, 2, 0, 0, 0, 0, 3, 3, 3, 3}, {3, 4})));
  const auto version = view.storage()->version();
  embedding_grad_(view, ones({5, 4}), ints({0, 2, 2, 2, 0}));
  CHECK(equal(view, sums));
  CHECK(view.storage()->version() > version);
  CHECK(embedding(sums, empty({0, 2}, {.dtype = i64})).shape() == Shape{0, 2, 4});
}

TEST_CASE("embedding gradient: the bits do not depend on threads") {
  const Tensor index = randint(0, 50, {3000});
  for (DType dtype : {f32, bf16}) {
    const Tensor grad = randn({3000, 129}).to(dtype);
    check_threads([&] { return std::vector{embedding_grad_(zeros({50, 129}, {.dtype = dtype}), grad, index)}; });
  }
}

TEST_CASE("gather, scatter and scatter_add agree with loops") {
  struct Row {
    Shape x, index;
    int dim;
  };
  const Row rows[] = {{{5}, {9}, 0},
                      {{5, 7}, {5, 3}, 1},
                      {{5, 7}, {4, 7}, 0},
                      {{5, 7}, {2, 20}, 1},
                      {{4, 6, 3}, {2, 9, 2}, 1},
                      {{4, 6, 3}, {4, 6, 3}, 2},
                      {{4, 6, 3}, {8, 5, 3}, 0},
                      {{300, 200}, {300, 100}, 1},
                      {{300, 200}, {100, 200}, 0},
                      {{3, 4}, {0, 4}, 0}};
  for (const Row& row : rows)
    for (DType dtype : {f32, f64, bf16, i64, u8})
      for (bool viewed : {false, true}) {
        INFO("x ", row.x, ", dim ", row.dim, ", dtype ", int(dtype));
        const auto made = [&](const Shape& shape) {
          Tensor x = randint(0, 100, shape).to(dtype);
          return viewed && x.dim() >= 2 ? x.transpose(0, 1).contiguous().transpose(0, 1) : x;
        };
        const Tensor x = made(row.x), index = randint(0, row.x[row.dim], row.index);
        Shape larger = row.index;
        larger[0] += 1;
        const Tensor source = made(larger);
        const Tensor gathered = gather(x, row.dim, index), placed = scatter(x, row.dim, index, source);
        const Tensor added = scatter_add(x, row.dim, index, source);
        auto expected = x.to_vector<double>(), sums = expected, picked = gathered.to_vector<double>();
        const auto places = list(index);
        const auto from = x.to_vector<double>(), values = source.to_vector<double>();
        const Strides x_strides = contiguous_strides(row.x), s_strides = contiguous_strides(larger);
        for (int64_t i = 0; i < index.numel(); ++i) {
          int64_t rest = i, in_x = 0, in_s = 0;
          for (int d = row.index.rank() - 1; d >= 0; --d) {
            const int64_t at = rest % row.index[d];
            rest /= row.index[d];
            in_x += (d == row.dim ? places[size_t(i)] : at) * x_strides[d];
            in_s += at * s_strides[d];
          }
          CHECK(picked[size_t(i)] == from[size_t(in_x)]);
          expected[size_t(in_x)] = values[size_t(in_s)];
          sums[size_t(in_x)] += values[size_t(in_s)];
        }
        CHECK(placed.to_vector<double>() == expected);
        if (dtype == u8)
          for (double& v : sums) v = double(uint8_t(int64_t(v)));
        if (dtype == bf16)
          for (double& v : sums) v = float(BFloat16(float(v)));
        CHECK(added.to_vector<double>() == sums);
      }
  CHECK(gather(full({}, 7), 0, zeros({}, {.dtype = i64})).item() == 7);
  // The last one wins.
  CHECK(list(scatter(zeros({2}, {.dtype = i64}), 0, ints({0, 0, 0}), ints({4, 5, 6}))) == Ints{6, 0});
  const Tensor view = zeros({3, 2}).t();
  scatter_add_(view, 1, zeros({2, 3}, {.dtype = i64}), ones({2, 3}));
  CHECK(equal(view, Tensor::from<float>({3, 0, 0, 3, 0, 0}, {2, 3})));
}

TEST_CASE("index_select and index_add_") {
  const Tensor x = arange(24).reshape({2, 3, 4}), index = ints({2, 0, 2});
  for (int dim : {1, 2}) {
    const Tensor y = index_select(x, dim, index);
    for (int64_t i = 0; i < 3; ++i) CHECK(equal(y.select(dim, i), x.select(dim, list(index)[size_t(i)])));
    CHECK(equal(index_select(x.transpose(0, 2).contiguous().transpose(0, 2), dim, index), y));
    const Tensor sums = zeros({2, 3, 4}, {.dtype = i64});
    index_add_(sums, dim, index, y);
    CHECK(equal(sums.select(dim, 2), x.select(dim, 2) * 2));
    CHECK(equal(sums.select(dim, 0), x.select(dim, 0)));
    CHECK(sum(sums.select(dim, 1)).item() == 0);
  }
  const Tensor y = ones({3, 2});
  index_add_(y.t(), 1, ints({1, 1}), y.t().narrow(1, 0, 2));  // the source shares storage with the target
  CHECK(equal(y, Tensor::from<float>({1, 1, 3, 3, 1, 1}, {3, 2})));
  CHECK(index_select(x, 0, empty({0}, {.dtype = i64})).shape() == Shape{0, 3, 4});
}

TEST_CASE("masked_fill") {
  const Tensor x = arange(6).reshape({2, 3}).to(f32), mask = Tensor::from<bool>({true, false, true}, {3});
  CHECK(equal(masked_fill(x, mask, -1), Tensor::from<float>({-1, 1, -1, -1, 4, -1}, {2, 3})));
  CHECK(masked_fill(x[0], mask.expand({4, 3}), 0).shape() == Shape{4, 3});
  for (DType dtype : {f64, f16, bf16, i64, i32, i8, u8, boolean})
    CHECK(equal(masked_fill(x.to(dtype), mask, 1), masked_fill(x, mask, 1).to(dtype)));
  const Tensor y = x.clone();
  masked_fill_(y.t(), mask.unsqueeze(1), 9);
  CHECK(equal(y, masked_fill(x, mask, 9)));
  CHECK(y.storage()->last_writer() == std::string("masked_fill_"));
}

TEST_CASE("cat, stack, pad") {
  const Tensor x = arange(6).reshape({2, 3});
  CHECK(list(cat({x, x.narrow(0, 0, 1)}, 0)) == Ints{0, 1, 2, 3, 4, 5, 0, 1, 2});
  CHECK(list(cat({x, x.narrow(1, 1, 1)}, -1)) == Ints{0, 1, 2, 1, 3, 4, 5, 4});
  CHECK(list(cat({x.t(), x.t()}, 1)) == Ints{0, 3, 0, 3, 1, 4, 1, 4, 2, 5, 2, 5});
  CHECK(equal(cat({empty({0}, {.dtype = i64}), x}, 1), x));
  CHECK(cat({empty({0}), empty({0})}).shape() == Shape{0});
  CHECK(cat({x, x.narrow(0, 0, 0)}).shape() == Shape{2, 3});
  CHECK(list(stack({x[0], x[1]}, 1)) == Ints{0, 3, 1, 4, 2, 5});
  CHECK(stack({full({}, 1), full({}, 2)}).shape() == Shape{2});
  CHECK(stack({x, x}, -1).shape() == Shape{2, 3, 2});

  CHECK(list(pad(x, {1, 0}, 7)) == Ints{7, 0, 1, 2, 7, 3, 4, 5});
  CHECK(list(pad(x, {0, 1, 1, 0})) == Ints{0, 0, 0, 0, 0, 1, 2, 0, 3, 4, 5, 0});
  CHECK(list(pad(x, {-1, 0, 0, -1})) == Ints{1, 2});
  CHECK(list(pad(x, {-2, 2}, 9)) == Ints{2, 9, 9, 5, 9, 9});
  CHECK(list(pad(x, {-4, 4}, 9)) == Ints{9, 9, 9, 9, 9, 9});
  CHECK(equal(pad(x, {}), x));
  CHECK(pad(x, {0, -3}).shape() == Shape{2, 0});
}

TEST_CASE("tril and triu") {
  for (const Shape& shape : {Shape{4, 4}, Shape{3, 5}, Shape{2, 5, 3}, Shape{0, 3}, Shape{3, 0}, Shape{1, 1}}) {
    const Tensor x = randint(1, 100, shape);
    for (int64_t diagonal : {int64_t(0), int64_t(1), int64_t(-2), int64_t(9), int64_t(-9), INT64_MAX, INT64_MIN}) {
      const auto low = list(tril(x, diagonal)), high = list(triu(x, diagonal)), values = list(x);
      const int64_t n = x.size(-2), m = x.size(-1);
      for (int64_t flat = 0; flat < x.numel(); ++flat) {
        const int64_t i = flat / m % n, j = flat % m;
        CHECK(low[size_t(flat)] == (j - i <= diagonal ? values[size_t(flat)] : 0));
        CHECK(high[size_t(flat)] == (j - i >= diagonal ? values[size_t(flat)] : 0));
      }
    }
  }
  const Tensor x = randn({3, 4});
  CHECK(equal(tril(x.t()), tril(x.t().contiguous())));
}

TEST_CASE("indexing: wrong calls change nothing") {
  const Tensor weight = randn({211, 4}), before = weight.clone(), x = randn({2, 3});
  const Tensor bad = ints({1, 2, 3, 4, 5, 300, -7});
  CHECK_ERROR(embedding(weight, bad),
              found_in_values("[embedding] expected indices in [0, 211), got 300 at position 5"));
  CHECK_ERROR(embedding(weight, bad.to(i32)), "[embedding] expected an index of i64, got i32 (convert with .to(i64))");
  CHECK_ERROR(embedding(weight[0], bad), "[embedding] expected a weight of shape (rows, columns), got (4)");
  CHECK_ERROR(embedding_grad_(weight, ones({7, 4}), bad),
              found_in_values("[embedding_grad_] expected indices in [0, 211), got 300 at position 5"));
  CHECK_ERROR(embedding_grad_(weight, x, ints({0, 1})),
              "[embedding_grad_] expected a gradient of shape (2, 4), got (2, 3)");
  CHECK_ERROR(gather(x, 1, ints({0, 3}, {2, 1})),
              found_in_values("[gather] expected indices in [0, 3), got 3 at position 1"));
  CHECK_ERROR(gather(x, 1, ints({0, 1, 2}, {3, 1})),
              "[gather] expected an index with as many dims as (2, 3) and at most its sizes outside dim 1, got (3, 1)");
  CHECK_ERROR(scatter(x, 1, ints({0, 1}, {2, 1}), x.to(f64)), "[scatter] expected one dtype, got f32 and f64");
  CHECK_ERROR(scatter_add_(x, 1, ints({0, 1}, {2, 1}), x.narrow(0, 0, 1)),
              "[scatter_add_] expected a source of at least the index's sizes (2, 1), got (1, 3)");
  CHECK_ERROR(index_select(x.narrow(1, 0, 2), 1, ints({0, 0, 0, 0, 0, 0, -7})),
              found_in_values("[index_select] expected indices in [0, 2), got -7 at position 6"));
  CHECK_ERROR(index_add_(x, 1, ints({0}), x), "[index_add_] expected a source of shape (2, 1), got (2, 3)");
  CHECK_ERROR(index_add_(weight, 0, bad, ones({7, 4})),
              found_in_values("[index_add_] expected indices in [0, 211), got 300 at position 5"));
  CHECK_ERROR(masked_fill(x, x, 0), "[masked_fill] expected a bool mask, got f32");
  CHECK_ERROR(masked_fill_(x[0], x.to(boolean), 0),
              "[masked_fill_] expected a mask that broadcasts to (3), got (2, 3)");
  CHECK_ERROR(cat({}), "[cat] expected at least one tensor, got none");
  CHECK_ERROR(cat({x, weight}), "[cat] expected shapes that agree outside dim 0, got (2, 3) and (211, 4)");
  CHECK_ERROR(stack({x, weight}), "[stack] expected equal shapes, got (2, 3) and (211, 4)");
  CHECK_ERROR(pad(x, {-4, 0}), "[pad] expected padding that leaves sizes >= 0");
  CHECK_ERROR(pad(x, {1}), "[pad] expected (before, after) pairs");
  CHECK_ERROR(tril(x[0]), "[tril] expected at least two dims, got shape (3)");
  if (default_device().is_cpu()) CHECK(equal(weight, before));  // a kernel on a device skips only the invalid indices
}
