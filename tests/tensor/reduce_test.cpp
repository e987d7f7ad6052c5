// Reductions, arg max and sorting, against plain loops in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

const double inf_value = INFINITY, nan_value = NAN;

// The elements of x grouped by the output of a reduction over `dims`, in row-major order of outputs and elements.
std::vector<std::vector<double>> groups(const Tensor& x, const Dims& dims) {
  std::vector<bool> reduced(8, dims.empty());
  for (int64_t d : dims) reduced[size_t(d < 0 ? d + x.dim() : d)] = true;
  int64_t outputs = 1;
  for (int i = 0; i < x.dim(); ++i) outputs *= reduced[size_t(i)] ? 1 : x.shape()[i];
  std::vector<std::vector<double>> result(static_cast<size_t>(outputs));
  const auto values = x.to_vector<double>();
  for (int64_t flat = 0; flat < x.numel(); ++flat) {
    int64_t rest = flat, out = 0, step = 1;
    for (int i = x.dim() - 1; i >= 0; --i) {
      const int64_t at = rest % x.shape()[i];
      rest /= x.shape()[i];
      if (!reduced[size_t(i)]) out += at * step, step *= x.shape()[i];
    }
    result[size_t(out)].push_back(values[size_t(flat)]);
  }
  return result;
}

template <class Fn> std::vector<double> folded(const std::vector<std::vector<double>>& parts, Fn fn) {
  std::vector<double> values;
  for (const auto& part : parts) values.push_back(fn(part));
  return values;
}

double prod_of(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>()); }
double norm_of(const std::vector<double>& v) {
  return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
}
double mean_of(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0) / double(v.size()); }
double any_of(const std::vector<double>& v) { return std::ranges::count(v, 0) < int64_t(v.size()); }
double all_of(const std::vector<double>& v) { return std::ranges::count(v, 0) == 0; }
double max_of(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }
double min_of(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }
double sum_of(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }
double var_of(const std::vector<double>& v) {
  const double mean = mean_of(v);
  double sum = 0;
  for (double x : v) sum += (x - mean) * (x - mean);
  return sum / double(v.size() - 1);
}
double log_sum_exp_of(const std::vector<double>& v) {
  const double highest = max_of(v);
  double sum = 0;
  for (double x : v) sum += std::exp(x - highest);
  return highest + std::log(sum);
}

void check_values(const Tensor& got, const std::vector<double>& expected, double tolerance) {
  const auto values = got.to_vector<double>();
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    if (std::isfinite(expected[i]))
      CHECK(std::abs(values[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i])));
    else CHECK((values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i]))));
  }
}

}  // namespace

TEST_CASE("reductions agree with loops, for any shape, view, dims and dtype") {
  manual_seed(3);
  const Tensor base = randn({7, 9, 21, 5}), matrix = randn({300, 1111});
  struct Row {
    const char* name;
    Tensor x;
    Dims dims;
  };
  const Row rows[] = {
      {"scalar", randn({}), {}},
      {"one", randn({1, 1}), {1}},
      {"vector", randn({100003}), {}},
      {"short vector", randn({13}), {0}},
      {"matrix rows", matrix, {1}},
      {"matrix columns", matrix, {0}},
      {"matrix all", matrix, {}},
      {"transposed rows", matrix.t(), {1}},
      {"transposed columns", matrix.t(), {0}},
      {"every third column, columns", matrix.slice(1, 1, end_of_dim, 3), {0}},
      {"every third column, rows", matrix.slice(1, 1, end_of_dim, 3), {1}},
      {"long rows", randn({3, 9001}), {-1}},
      {"many rows", randn({5000, 33}), {0}},
      {"narrow rows", randn({20000, 3}), {1}},
      {"narrow columns", randn({20000, 3}), {0}},
      {"middle", randn({17, 40, 19}), {1}},
      {"outer and inner", randn({6, 5, 700}), {0, 2}},
      {"four dims", base, {0, 2}},
      {"four dims, permuted", base.permute({2, 0, 3, 1}), {1, -1}},
      {"four dims, keep last", base, {0, 1, 2}},
      {"four dims, keep first", base, {1, 2, 3}},
      {"expanded", randn({5, 1, 7}).expand({5, 30, 7}), {1}},
      {"expanded, kept", randn({5, 1, 7}).expand({5, 30, 7}), {0, 2}},
      {"channels", randn({8, 16, 31, 31}), {0, 2, 3}},
  };
  for (const Row& row : rows) {
    for (DType dtype : {f32, f64, bf16, f16}) {
      INFO("name ", row.name, ", dtype ", int(dtype));
      const Tensor x = dtype == f32 ? row.x : row.x.to(dtype);
      const auto parts = groups(x, row.dims);
      const double eps = dtype == f64 ? 1e-12 : dtype == f32 ? 3e-6 : dtype == f16 ? 2e-3 : 1e-2;
      check_values(sum(x, row.dims), folded(parts, sum_of), eps * 10);
      check_values(mean(x, row.dims), folded(parts, mean_of), eps);
      check_values(amax(x, row.dims), folded(parts, max_of), 0);
      check_values(amin(x, row.dims), folded(parts, min_of), 0);
      check_values(logsumexp(x, row.dims), folded(parts, log_sum_exp_of), eps);
      if (parts[0].size() > 1) check_values(var(x, row.dims), folded(parts, var_of), eps);
      if (dtype == f16) continue;
      if (parts[0].size() < 1000) check_values(prod(x, row.dims), folded(parts, prod_of), eps);
      check_values(norm(x, row.dims), folded(parts, norm_of), eps);
    }
    for (DType dtype : {i64, i32, i8, u8, boolean}) {
      INFO("name ", row.name, ", dtype ", int(dtype));
      const Tensor x = (dtype == u8 || dtype == boolean ? abs(row.x) : row.x * 3).to(dtype);
      const auto parts = groups(x, row.dims);
      CHECK(sum(x, row.dims).dtype() == i64);
      check_values(sum(x, row.dims), folded(parts, sum_of), 0);
      check_values(amax(x, row.dims), folded(parts, max_of), 0);
      check_values(amin(x, row.dims), folded(parts, min_of), 0);
      CHECK(any(x, row.dims).dtype() == boolean);
      check_values(any(x, row.dims), folded(parts, any_of), 0);
      check_values(all(x, row.dims), folded(parts, all_of), 0);
    }
  }
}

TEST_CASE("reductions keep dims when asked, and handle empty tensors") {
  const Tensor x = randn({2, 3, 4});
  CHECK(sum(x, {1}, true).shape() == Shape{2, 1, 4});
  CHECK(sum(x, {-1, 0}).shape() == Shape{3});
  CHECK(sum(x, {}, true).shape() == Shape{1, 1, 1});
  const Tensor none = empty({0, 3});
  CHECK(sum(none).item() == 0);
  CHECK(equal(sum(none, {0}), zeros({3})));
  CHECK(sum(none, {1}).shape() == Shape{0});
  CHECK(equal(prod(none, {0}), ones({3})));
  CHECK(std::isnan(mean(none).item()));
  CHECK(std::isnan(var(none).item()));
  CHECK(logsumexp(none, {0}).to_vector<double>() == std::vector<double>(3, -inf_value));
  CHECK(norm(none).item() == 0);
  CHECK(!any(none).item<bool>());
  CHECK(all(none).item<bool>());
  CHECK(amax(none, {1}).shape() == Shape{0});
  CHECK(all_finite(none));
}

TEST_CASE("reductions: NaN, infinities, huge values, large means") {
  std::vector<float> values(1000, 1.f);
  for (size_t place : {size_t(0), size_t(500), size_t(999)}) {
    auto with_nan = values;
    with_nan[place] = NAN;
    const Tensor x = Tensor::from(with_nan, {1000});
    for (const Tensor& y : {amax(x), amin(x), max(x), sum(x), logsumexp(x, {0})}) CHECK(std::isnan(y.item()));
    CHECK(argmax(x).item<int64_t>() == int64_t(place));
    CHECK(argmin(x).item<int64_t>() == int64_t(place));
    CHECK(!all_finite(x));
    CHECK(!all_finite(x.to(bf16)));
    CHECK(all(x).item<bool>());  // NaN is nonzero
    CHECK(std::isnan(amax(x.reshape({1000, 1}).expand({1000, 20}), {0}).to_vector<float>()[19]));
  }
  const Tensor rows = Tensor::from<float>({-INFINITY, -INFINITY, INFINITY, 0, -INFINITY, 2}, {3, 2});
  CHECK(logsumexp(rows, {1}).to_vector<double>() == std::vector<double>{-inf_value, inf_value, 2});
  CHECK(logsumexp(full({5}, 1000), {0}).item() == doctest::Approx(1000 + std::log(5.0)));
  CHECK(norm(full({4}, 1e30)).item() == doctest::Approx(2e30));
  CHECK(norm(full({4}, 1e-30)).item() == doctest::Approx(2e-30));
  CHECK(std::isinf(sum_squares(full({4}, 1e30)).item()));
  // f32 is coarse at values around 10000.
  CHECK(var(arange(1001).to(f32) * 0.001 + 10000.0).item() == doctest::Approx(0.0835835).epsilon(0.02));
  CHECK(var(arange(1001).to(f64) * 0.001 + 1e6).item() == doctest::Approx(0.0835835).epsilon(1e-6));
  CHECK(var(Tensor::from<float>({16777216, 16777218}, {2})).item() == 2);
  CHECK(std::isnan(var(ones({1})).item()));
  CHECK(stddev(Tensor::from<float>({1, 3}, {2}), {}, 0).item() == 1);
  CHECK(sum(full({1 << 22}, 0.1)).item() == doctest::Approx(double(0.1f) * (1 << 22)).epsilon(1e-6));
  CHECK(sum_squares(full({1 << 22}, 0.1)).item() ==
        doctest::Approx(double(0.1f) * double(0.1f) * (1 << 22)).epsilon(1e-7));
  CHECK(sum(full({1 << 17}, 1, {.dtype = bf16})).item() == 1 << 17);
}

TEST_CASE("reductions: the bits do not depend on threads") {
  const Tensor x = randn({513, 1025}), big = randn({300001});
  check_threads([&] {
    return std::vector{
        sum(x),    sum(x, {0}),       sum(x, {1}), sum(big),           var(x, {0}),           logsumexp(x, {0}),
        norm(big), max(x, 0).indices, argmax(big), sort(x, 1).indices, topk(x, 7, 0).indices, sum(x.to(bf16), {0})};
  });
}

TEST_CASE("max, min, argmax: the first place on ties, NaN wins") {
  for (DType dtype : {f32, f64, f16, bf16, i64, i32, i8, u8, boolean})
    for (const Shape& shape : {Shape{1}, Shape{700}, Shape{5, 131}, Shape{4, 3, 67}, Shape{70001}, Shape{1100, 3}}) {
      const Tensor x = randint(0, dtype == boolean ? 2 : 50, shape).to(dtype);
      for (int dim = 0; dim < x.dim(); ++dim)
        for (bool largest : {true, false}) {
          const auto [values, indices] = largest ? max(x, dim) : min(x, dim - x.dim());
          std::vector<double> best, places;
          for (const auto& part : groups(x, {dim})) {
            const auto at = largest ? std::ranges::max_element(part) : std::ranges::min_element(part);
            best.push_back(*at), places.push_back(double(at - part.begin()));
          }
          check_values(values, best, 0);
          check_values(indices, places, 0);
        }
    }
  const Tensor x = Tensor::from<float>({1, NAN, 7, NAN, 5, 5}, {2, 3});
  CHECK(max(x, 1).indices.to_vector<int64_t>() == std::vector<int64_t>{1, 0});
  CHECK(max(x, 0).indices.to_vector<int64_t>() == std::vector<int64_t>{1, 0, 0});
  CHECK(max(x, 1, true).values.shape() == Shape{2, 1});
  CHECK(argmax(x.t()).item<int64_t>() == 1);  // the index in the row-major order of the view
  CHECK(argmin(x, 0).shape() == Shape{3});
  CHECK(argmax(x, {}, true).shape() == Shape{1, 1});
  CHECK(max(full({}, 3), 0).values.item() == 3);
}

TEST_CASE("reduce: whole numbers wrap around") {
  for (const bool product : {false, true})
    for (const Shape& shape : {Shape{70, 40}, Shape{40, 70}}) {  // columns, and rows
      const Tensor x = full(shape, product ? 3 : double(int64_t(1) << 60), {i64, cpu});
      for (const int64_t dim : {0, 1}) {
        uint64_t expected = product ? 1 : 0;
        for (int64_t i = 0; i < shape[dim]; ++i) expected = product ? expected * 3 : expected + (uint64_t(1) << 60);
        const auto found = (product ? prod(x, {dim}) : sum(x, {dim})).to_vector<int64_t>();
        CHECK(std::ranges::count(found, int64_t(expected)) == int64_t(found.size()));
      }
    }
}

TEST_CASE("sort and topk: stable, NaN is the largest") {
  for (DType dtype : {f32, f64, f16, bf16, i64, i32, i8, u8, boolean})
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{37}, Shape{3000}, Shape{5, 600}, Shape{600, 5}, Shape{2, 0}}) {
      const Tensor x = (randint(dtype == u8 || dtype == boolean ? 0 : -60, 60, shape)).to(dtype);
      for (bool descending : {false, true}) {
        const int dim = x.dim() == 2 && x.shape()[0] == 600 ? 0 : -1;
        const auto [values, indices] = sort(x, dim, descending);
        std::vector<double> sorted, places;
        const Tensor lines = x.dim() == 0 ? x.reshape({1}) : dim == 0 ? x.t() : x;
        const auto flat = lines.to_vector<double>();
        const int64_t n = lines.size(-1);
        for (int64_t first = 0; n > 0 && first < x.numel(); first += n) {
          std::vector<int64_t> order(static_cast<size_t>(n));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
            const double p = flat[size_t(first + a)], q = flat[size_t(first + b)];
            return descending ? p > q : p < q;
          });
          for (int64_t at : order) sorted.push_back(flat[size_t(first + at)]), places.push_back(double(at));
        }
        check_values(dim == 0 ? values.t() : values, sorted, 0);
        check_values(dim == 0 ? indices.t() : indices, places, 0);
        if (x.dim() == 0) continue;
        for (int64_t k : {int64_t(0), int64_t(1), int64_t(5), int64_t(300), x.size(dim)}) {
          if (k > x.size(dim)) continue;
          const auto best = topk(x, k, dim, descending);
          CHECK(equal(best.values, values.narrow(dim, 0, k)));
          CHECK(equal(best.indices, indices.narrow(dim, 0, k)));
        }
      }
    }
  const Tensor x = Tensor::from<float>({2, NAN, -0.f, INFINITY, 0.f, -INFINITY, -NAN}, {7});
  CHECK(sort(x).indices.to_vector<int64_t>() == std::vector<int64_t>{5, 2, 4, 0, 3, 1, 6});
  CHECK(sort(x, 0, true).indices.to_vector<int64_t>() == std::vector<int64_t>{1, 6, 3, 0, 2, 4, 5});
  CHECK(topk(x, 3).indices.to_vector<int64_t>() == std::vector<int64_t>{1, 6, 3});
  CHECK(topk(x, 2, 0, false).indices.to_vector<int64_t>() == std::vector<int64_t>{5, 2});
  const Tensor long_line = randn({100000});
  CHECK(equal(topk(long_line, 50).indices, sort(long_line, 0, true).indices.narrow(0, 0, 50)));
  CHECK(equal(topk(long_line, 60000, 0, false).indices, sort(long_line).indices.narrow(0, 0, 60000)));
}

TEST_CASE("sum_to, allclose, equal, all_finite") {
  const Tensor x = randn({4, 3, 5});
  CHECK(allclose(sum_to(x, {3, 1}), sum(x, {0, 2}).reshape({3, 1})));
  CHECK(allclose(sum_to(x, {}), sum(x)));
  CHECK(equal(sum_to(x, {4, 3, 5}), x));
  CHECK(sum_to(x, {1, 1, 5}).shape() == Shape{1, 1, 5});
  const Tensor nan = full({2}, NAN), one = ones({2});
  CHECK(equal(nan, nan.clone()));
  CHECK(!allclose(nan, nan));
  CHECK(!equal(one, one.to(f64)));
  CHECK(!equal(one, ones({1, 2})));
  CHECK(equal(x.t(), x.t().contiguous()));
  CHECK(allclose(full({2}, inf_value), full({2}, inf_value)));
  CHECK(!allclose(full({2}, inf_value), full({2}, -inf_value)));
  CHECK(!allclose(one, full({2}, inf_value)));
  CHECK(allclose(one, one + 1e-6));
  CHECK(!allclose(one, one + 1e-3));
  CHECK(all_finite(x));
  CHECK(all_finite(arange(3)));
  for (DType dtype : {f32, f64, f16, bf16})
    for (double bad : {inf_value, -inf_value, nan_value}) {
      Tensor y = randn({100, 101}).to(dtype);
      y.select(0, 99).select(0, 100).fill_(bad);
      CHECK(!all_finite(y));
      CHECK(!all_finite(y.t()));
      CHECK(all_finite(y.narrow(0, 0, 99)));
    }
}

TEST_CASE("reductions: wrong calls") {
  const Tensor x = randn({2, 3});
  CHECK_ERROR(sum(x, {2}), "[sum]");
  CHECK_ERROR(sum(x, {0, -2}), "[sum] expected no dim twice, got (0, -2) for shape (2, 3)");
  CHECK_ERROR(mean(x.to(i64)), "[mean] expected a floating dtype, got i64");
  CHECK_ERROR(norm(x.to(i64)), "[norm] expected a floating dtype, got i64");
  CHECK_ERROR(amax(empty({0, 3})), "[amax] expected at least one element along dim 0, got shape (0, 3)");
  CHECK_ERROR(max(empty({0, 3}), 0), "[max] expected at least one element along dim 0, got shape (0, 3)");
  CHECK_ERROR(argmin(empty({0})), "[argmin] expected at least one element, got shape (0)");
  CHECK_ERROR(topk(x, 4), "[topk] expected k from 0 to 3 (the size of dim 1 of (2, 3)), got 4");
  CHECK_ERROR(sum_to(x, {2}), "[sum_to] expected a shape that broadcasts to (2, 3), got (2)");
  CHECK_ERROR(sort(Tensor()), "[sort] tensor is undefined");
}
