// Row operations (softmax, norms, cross entropy) and optimizer kernels: against plain loops and difference quotients in
// f64, for odd sizes, layouts and dtypes; the same bits for any number of threads and any division of a flat tensor.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

constexpr double inf_d = std::numeric_limits<double>::infinity();

Tensor random_rows(const Shape& shape, DType dtype = f64, uint32_t seed = 1) {
  std::mt19937 engine(seed);
  std::vector<double> values(static_cast<size_t>(numel_of(shape)));
  for (double& value : values) value = double(engine()) / 1e9 - 2.1;
  return Tensor::from(values, shape).to(dtype);
}

std::vector<double> doubles(const Tensor& x) { return x.to_vector<double>(); }

void check_near(const Tensor& got, const Tensor& expected, double tolerance) {
  REQUIRE(got.shape() == expected.shape());
  const auto a = doubles(got), b = doubles(expected);
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) <= tolerance * std::max(1.0, std::abs(b[i]))) continue;  // never true for NaN
    FAIL_CHECK("element " << i << ": " << a[i] << ", expected " << b[i]);
    break;
  }
}

double dot(const Tensor& a, const Tensor& b) {
  const auto x = doubles(a), y = doubles(b);
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

/// Difference quotients of sum(f(x) * seed) for every element of x, in f64.
Tensor slope(const Tensor& x, const Tensor& seed, const std::function<Tensor(const Tensor&)>& f) {
  auto values = doubles(x);
  std::vector<double> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double kept = values[i], step = 1e-5;
    values[i] = kept + step;
    const double up = dot(f(Tensor::from(values, x.shape())), seed);
    values[i] = kept - step;
    const double down = dot(f(Tensor::from(values, x.shape())), seed);
    values[i] = kept;
    result[i] = (up - down) / (2 * step);
  }
  return Tensor::from(result, x.shape());
}

Tensor with_channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}); }

struct Precision {
  DType dtype;
  double tolerance;
};
const Precision precisions[] = {{f64, 1e-12}, {f32, 2e-6}, {f16, 2e-3}, {bf16, 2e-2}};

}  // namespace

TEST_CASE("softmax along any dim, in every dtype") {
  struct Row {
    Shape shape;
    int64_t dim;
  };
  for (const Row& row : {Row{{3, 5}, -1}, Row{{3, 5}, 0}, Row{{2, 17, 3}, 1}, Row{{1, 1000}, 1}, Row{{7, 64}, 1},
                         Row{{0, 4}, 1}, Row{{4, 0}, 1}, Row{{}, 0}, Row{{1}, 0}, Row{{300, 129}, 1}}) {
    const Tensor x = random_rows(row.shape);
    Tensor expected = x;
    if (x.numel() > 0) {  // exp(x) / sum in f64
      auto values = doubles(x);
      const int d = x.dim() == 0 ? 0 : normalize_dim("test", row.dim, x.dim());
      const int64_t n = x.dim() == 0 ? 1 : x.shape()[d], inner = x.dim() == 0 ? 1 : contiguous_strides(x.shape())[d];
      for (int64_t base = 0; base < x.numel(); ++base) {
        if (base / inner % n != 0) continue;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += std::exp(values[size_t(base + i * inner)]);
        for (int64_t i = 0; i < n; ++i)
          values[size_t(base + i * inner)] = std::exp(values[size_t(base + i * inner)]) / sum;
      }
      expected = Tensor::from(values, row.shape);
    }
    for (const auto& [dtype, tolerance] : precisions) {
      INFO("shape ", row.shape, ", dtype ", dtype);
      const Tensor y = softmax(x.to(dtype), row.dim), logs = log_softmax(x.to(dtype), row.dim);
      check_near(y, expected, tolerance);
      auto powers = doubles(logs);
      for (double& value : powers) value = std::exp(value);
      check_near(Tensor::from(powers, row.shape), expected, tolerance);
    }
  }
}

TEST_CASE("softmax of masked, huge and NaN rows") {
  for (DType dtype : {f32, f64}) {
    const Tensor x = Tensor::from({0.0, -inf_d, 1000.0, 1000.0, -inf_d, -inf_d, -inf_d, -inf_d, 1.0, 2.0, double(NAN),
                                   3.0, inf_d, 0.0, 0.0, 0.0},
                                  {4, 4})
                         .to(dtype);
    const auto y = doubles(softmax(x, 1)), logs = doubles(log_softmax(x, 1));
    const double first[] = {0, 0, 0.5, 0.5};
    for (size_t i = 0; i < 4; ++i) CHECK(y[i] == first[i]);
    for (size_t i = 4; i < 12; ++i) CHECK(std::isnan(y[i]));
    CHECK(std::isnan(y[12]));
    CHECK(logs[1] == -inf_d);
    CHECK(logs[2] == doctest::Approx(-std::log(2.0)));
    for (size_t i = 4; i < 12; ++i) CHECK(std::isnan(logs[i]));
  }
}

TEST_CASE("softmax: gradient, views, threads") {
  for (int64_t dim : {0, 1, 2}) {
    const Tensor x = random_rows({3, 4, 5}), seed = random_rows({3, 4, 5}, f64, 2);
    check_near(softmax_grad(false, seed, softmax(x, dim), dim),
               slope(x, seed, [&](const Tensor& v) { return softmax(v, dim); }), 1e-8);
    check_near(softmax_grad(true, seed, log_softmax(x, dim), dim),
               slope(x, seed, [&](const Tensor& v) { return log_softmax(v, dim); }), 1e-8);
  }
  const Tensor x = random_rows({37, 130}, f32), g = random_rows({37, 130}, f32, 2);
  CHECK(equal(softmax(x.t(), 0), softmax(x, 1).t()));
  const Tensor y = softmax(x, 1);
  CHECK(equal(softmax_grad(false, g.t(), y.t(), 0), softmax_grad(false, g, y, 1).t()));
  const Tensor big = random_rows({301, 333}, f32);
  check_threads([&] { return std::vector{softmax(big, 1), log_softmax(big, 0), softmax_grad(false, big, big, 1)}; });
}

TEST_CASE("rms norm rounds 16-bit values before they are multiplied with the weight, as Llama's") {
  for (const DType dtype : {f16, bf16}) {
    const Tensor x = randn({5, 70}).to(dtype), w = randn({70}).to(dtype);
    const NormResult rms = rms_norm(x, w, 1e-6);
    const Tensor y = mul(x.to(f32), rms.rstd.to(f32).reshape({5, 1})).to(dtype);
    CHECK(equal(rms.out, mul(y.to(f32), w.to(f32)).to(dtype)));
  }
}

TEST_CASE("layer norm and rms norm: values and gradients") {
  for (const Shape& shape : {Shape{3, 10}, Shape{2, 3, 4}, Shape{5, 1}, Shape{70, 3}, Shape{1, 67}, Shape{0, 4}}) {
    const int64_t n = shape.back();
    const Tensor x = random_rows(shape), seed = random_rows(shape, f64, 2), w = random_rows({n}, f64, 3),
                 b = random_rows({n}, f64, 4);
    const NormResult layer = layer_norm(x, {n}, w, b, 1e-3), rms = rms_norm(x, w, 1e-3);
    if (x.numel() > 0) {
      const auto values = doubles(x), weights = doubles(w), biases = doubles(b), means = doubles(layer.mean);
      std::vector<double> expected(values.size()), expected_rms(values.size());
      for (size_t r = 0; r < values.size(); r += size_t(n)) {
        double mean = 0, square = 0, variance = 0;
        for (size_t i = 0; i < size_t(n); ++i)
          mean += values[r + i] / double(n), square += values[r + i] * values[r + i] / double(n);
        for (size_t i = 0; i < size_t(n); ++i) variance += (values[r + i] - mean) * (values[r + i] - mean) / double(n);
        for (size_t i = 0; i < size_t(n); ++i) {
          expected[r + i] = (values[r + i] - mean) / std::sqrt(variance + 1e-3) * weights[i] + biases[i];
          expected_rms[r + i] = values[r + i] / std::sqrt(square + 1e-3) * weights[i];
        }
      }
      for (const auto& [dtype, tolerance] : precisions) {
        CAPTURE(dtype);
        const NormResult low = layer_norm(x.to(dtype), {n}, w.to(dtype), b.to(dtype), 1e-3);
        check_near(low.out, Tensor::from(expected, shape), 10 * tolerance);
        check_near(rms_norm(x.to(dtype), w.to(dtype), 1e-3).out, Tensor::from(expected_rms, shape), 10 * tolerance);
        const NormGrad grad = layer_norm_grad(seed.to(dtype), x.to(dtype), low, {n}, w.to(dtype), true);
        const NormGrad exact = layer_norm_grad(seed, x, layer, {n}, w, true);
        check_near(grad.x, exact.x, n == 1 ? 10 : 100 * tolerance);
        check_near(grad.weight, exact.weight, 30 * tolerance);
        check_near(grad.bias, exact.bias, 30 * tolerance);
      }
    }
    const NormGrad grad = layer_norm_grad(seed, x, layer, {n}, w, true), grad_rms = rms_norm_grad(seed, x, rms.rstd, w);
    check_near(grad.x, slope(x, seed, [&](const Tensor& v) { return layer_norm(v, {n}, w, b, 1e-3).out; }), 1e-7);
    check_near(grad.weight, slope(w, seed, [&](const Tensor& v) { return layer_norm(x, {n}, v, b, 1e-3).out; }), 1e-7);
    check_near(grad.bias, slope(b, seed, [&](const Tensor& v) { return layer_norm(x, {n}, w, v, 1e-3).out; }), 1e-7);
    check_near(grad_rms.x, slope(x, seed, [&](const Tensor& v) { return rms_norm(v, w, 1e-3).out; }), 1e-7);
    check_near(grad_rms.weight, slope(w, seed, [&](const Tensor& v) { return rms_norm(x, v, 1e-3).out; }), 1e-7);
  }
}

TEST_CASE("layer norm: several dims, no parameters, hard rows, threads") {
  const Tensor x = random_rows({3, 4, 5}, f32);
  CHECK(equal(layer_norm(x, {4, 5}).out, layer_norm(x.view({3, 20}), {20}).out.view({3, 4, 5})));
  const NormGrad none = layer_norm_grad(x, x, layer_norm(x, {5}), {5}, {}, false);
  CHECK(!none.weight.defined());
  CHECK(!none.bias.defined());
  // A constant row gives 0; rows of tiny values and rows far from zero keep their precision.
  const std::vector<float> rows{3, 3, 3, 3, 1e-4f, 2e-4f, 0, -1e-4f, 10000.25f, 10000.5f, 10001, 9999};
  const Tensor hard = Tensor::from(rows, {3, 4});
  check_near(layer_norm(hard, {4}).out, layer_norm(hard.to(f64), {4}).out, 1e-6);
  const auto y = doubles(layer_norm(hard, {4}).out);
  for (size_t i = 0; i < 4; ++i) CHECK(y[i] == 0);
  CHECK(std::isnan(doubles(layer_norm(Tensor::from({1.f, NAN, 2.f}, {1, 3}), {3}).out)[0]));
  const Tensor big = random_rows({333, 205}, f32), w = random_rows({205}, f32, 2);
  check_threads([&] {
    const NormResult r = layer_norm(big, {205}, w, w);
    const NormGrad g = layer_norm_grad(big, big, r, {205}, w, true);
    const NormGrad s = rms_norm_grad(big, big, rms_norm(big, w).rstd, w);
    return std::vector{r.out, r.mean, r.rstd, g.x, g.weight, g.bias, s.x, s.weight};
  });
}

TEST_CASE("batch norm: values, gradients, running statistics") {
  for (const Shape& shape : {Shape{6, 3}, Shape{4, 5, 7}, Shape{2, 3, 4, 5}, Shape{3, 1, 5, 7}, Shape{140, 2}}) {
    const int64_t channels = shape[1], count = numel_of(shape) / channels;
    const Tensor x = random_rows(shape), seed = random_rows(shape, f64, 2), w = random_rows({channels}, f64, 3),
                 b = random_rows({channels}, f64, 4);
    for (bool last : {false, true}) {
      if (last && shape.rank() != 4) continue;
      const Tensor in = last ? with_channels_last(x) : x;
      const Tensor mean = zeros({channels}, {f64}), var = ones({channels}, {f64});
      const NormResult result = batch_norm(in, w, b, mean, var, true, 0.25, 1e-3);
      Tensor expected = empty(shape, {f64});
      for (int64_t c = 0; c < channels; ++c) {
        const auto values = doubles(x.select(1, c));
        double m = 0, v = 0;
        for (double value : values) m += value / double(count);
        for (double value : values) v += (value - m) * (value - m) / double(count);
        auto normal = values;
        for (double& value : normal)
          value = (value - m) / std::sqrt(v + 1e-3) * doubles(w)[size_t(c)] + doubles(b)[size_t(c)];
        expected.select(1, c).copy_(Tensor::from(normal, x.select(1, c).shape()));
        CHECK(doubles(mean)[size_t(c)] == doctest::Approx(0.25 * m));
        CHECK(doubles(var)[size_t(c)] == doctest::Approx(0.75 + 0.25 * v * double(count) / double(count - 1)));
      }
      check_near(result.out, expected, 1e-11);
      CHECK(result.out.strides() == in.strides());
      for (bool training : {true, false}) {
        const auto of = [&](const Tensor& x, const Tensor& w, const Tensor& b) {
          return training ? batch_norm(x, w, b, {}, {}, true, 0.25, 1e-3)
                          : batch_norm(x, w, b, mean.to(x.dtype()), var.to(x.dtype()), false, 0.25, 1e-3);
        };
        const NormGrad grad = batch_norm_grad(seed, in, of(in, w, b), w, true, training);
        check_near(grad.x, slope(x, seed, [&](const Tensor& v) { return of(v, w, b).out; }), 1e-7);
        check_near(grad.weight, slope(w, seed, [&](const Tensor& v) { return of(x, v, b).out; }), 1e-7);
        check_near(grad.bias, slope(b, seed, [&](const Tensor& v) { return of(x, w, v).out; }), 1e-7);
        const Tensor low = in.to(f32), low_w = w.to(f32);
        const NormGrad rough = batch_norm_grad(seed.to(f32), low, of(low, low_w, b.to(f32)), low_w, true, training);
        check_near(rough.x, grad.x, 1e-5);
        check_near(rough.weight, grad.weight, 1e-5);
      }
    }
  }
  const Tensor far = add_scalar(random_rows({300, 3, 5}), 1000);  // far from zero, in several groups
  check_near(batch_norm(far.to(f32), {}, {}, {}, {}, true).out,
             batch_norm(far.to(f32).to(f64), {}, {}, {}, {}, true).out, 1e-4);
  const Tensor big = random_rows({17, 5, 13, 11}, f32), flat = random_rows({3000, 19}, f32);
  for (const Tensor& x : {big, with_channels_last(big), flat})
    check_threads([&] {
      const NormResult r = batch_norm(x, {}, {}, {}, {}, true);
      const NormGrad g = batch_norm_grad(x, x, r, ones({x.shape()[1]}), true, true);
      return std::vector{r.out, r.mean, r.rstd, g.x, g.weight, g.bias};
    });
}

TEST_CASE("cross entropy: values and gradients") {
  struct Row {
    int64_t rows, classes;
    double smoothing;
    bool weighted;
    int64_t ignore;
  };
  for (const Row& row :
       {Row{5, 7, 0, false, -100}, Row{5, 7, 0.1, false, 2}, Row{6, 3, 0, true, 1}, Row{4, 9, 0.2, true, -1},
        Row{2, 5001, 0.1, true, -100}, Row{3, 1, 0, false, -100}, Row{0, 4, 0, false, -100}}) {
    const Tensor x = random_rows({row.rows, row.classes}),
                 weight = row.weighted ? add_scalar(random_rows({row.classes}, f64, 3), 3) : Tensor();
    const CrossEntropyArgs args{.ignore_index = row.ignore, .label_smoothing = row.smoothing};
    std::vector<int64_t> targets;
    for (int64_t r = 0; r < row.rows; ++r)
      targets.push_back(r == 1 && row.classes > 1 ? row.ignore : r * 5 % row.classes);
    const Tensor target = Tensor::from(targets, {row.rows});
    const auto values = doubles(x), w = row.weighted ? doubles(weight) : std::vector<double>(size_t(row.classes), 1.0);
    std::vector<double> expected;
    double weight_sum = 0;
    for (int64_t r = 0; r < row.rows; ++r) {
      double sum = 0, loss = 0;
      const int64_t t = targets[size_t(r)];
      for (int64_t c = 0; c < row.classes; ++c) sum += std::exp(values[size_t(r * row.classes + c)]);
      for (int64_t c = 0; c < row.classes; ++c) {
        const double share = (c == t ? 1 - row.smoothing : 0) + row.smoothing / double(row.classes);
        loss += share * w[size_t(c)] * (std::log(sum) - values[size_t(r * row.classes + c)]);
      }
      expected.push_back(t == row.ignore ? 0 : loss);
      weight_sum += t == row.ignore ? 0 : w[size_t(t)];
    }
    CHECK(cross_entropy_weight_sum(target, weight, args) == doctest::Approx(weight_sum));
    const Tensor seed = random_rows({row.rows}, f64, 2);
    const CrossEntropyRows exact = cross_entropy_rows(x, target, weight, args);
    const Tensor grad = cross_entropy_rows_grad(seed, x, exact.lse, target, weight, args, false);
    if (row.classes < 100)
      check_near(grad,
                 slope(x, seed, [&](const Tensor& v) { return cross_entropy_rows(v, target, weight, args).loss; }),
                 1e-8);
    for (const auto& [dtype, tolerance] : precisions) {
      CAPTURE(dtype);
      const Tensor logits = x.to(dtype), weights = weight.defined() ? weight.to(dtype) : weight,
                   upstream = seed.to(dtype == f64 ? f64 : f32);
      const CrossEntropyRows result = cross_entropy_rows(logits, target, weights, args);
      check_near(result.loss, Tensor::from(expected, {row.rows}), 10 * tolerance);
      const Tensor fresh = cross_entropy_rows_grad(upstream, logits, result.lse, target, weights, args, false);
      check_near(fresh, grad, 10 * tolerance);
      Tensor place = logits.clone();
      CHECK(equal(cross_entropy_rows_grad(upstream, place, result.lse, target, weights, args, true), fresh));
      CHECK(equal(place, fresh));
      const Tensor losses = empty_like(result.loss), both = logits.clone();
      cross_entropy_rows_into(losses, upstream, both, target, weights, args);
      CHECK(equal(losses, result.loss));
      CHECK(equal(both, fresh));
    }
  }
}

TEST_CASE("cross entropy: masked and huge logits, long rows, threads") {
  const Tensor x = Tensor::from({-inf_d, 0.0, 1.0, -inf_d, -inf_d, -inf_d, 9000.0, 9001.0, 9000.5}, {3, 3}),
               target = Tensor::from<int64_t>({1, 0, 2});
  for (DType dtype : {f32, f64}) {
    const CrossEntropyRows result = cross_entropy_rows(x.to(dtype), target);
    const auto loss = doubles(result.loss),
               grad =
                   doubles(cross_entropy_rows_grad(ones({3}, {dtype}), x.to(dtype), result.lse, target, {}, {}, false));
    CHECK(loss[0] == doctest::Approx(std::log(1 + std::exp(1.0))));
    CHECK(std::isnan(loss[1]));
    CHECK(std::isnan(grad[3]));
    const double sum = std::exp(-0.5) + std::exp(0.5) + 1;
    CHECK(loss[2] == doctest::Approx(std::log(sum)).epsilon(1e-6));
    CHECK(grad[0] == 0);
    CHECK(grad[6] == doctest::Approx(std::exp(-0.5) / sum).epsilon(1e-6));
    CHECK(grad[8] == doctest::Approx(1 / sum - 1).epsilon(1e-6));
  }
  Tensor far = full({1, 10000}, -inf_d);  // whole blocks of -inf before and after the only two finite entries
  far.narrow(1, 5000, 2).fill_(3);
  CHECK(doubles(cross_entropy_rows(far, Tensor::from<int64_t>({5001})).loss)[0] == doctest::Approx(std::log(2.0)));
  const Tensor big = random_rows({37, 5001}, f32), t = arange(37);
  check_threads([&] {
    const CrossEntropyRows r = cross_entropy_rows(big, t);
    return std::vector{r.loss, r.lse, cross_entropy_rows_grad(r.loss, big, r.lse, t, {}, {}, false)};
  });
}

TEST_CASE("wrong calls of row operations are named") {
  const Tensor x = zeros({4, 10});
  const auto target = [](int64_t bad) { return Tensor::from<int64_t>({0, 1, -100, bad}); };
  const Tensor wide = zeros({2, 3});
  CHECK_ERROR_IS(cross_entropy_rows(x, target(12)),
                 "[cross_entropy] expected targets in [0, 10), got 12 in row 3; correct the targets");
  CHECK_ERROR_IS(cross_entropy_rows(x, target(-1)),
                 "[cross_entropy] expected targets in [0, 10), got -1 in row 3; correct the targets");
  CHECK_ERROR_IS(cross_entropy_rows(x, zeros({4})),
                 "[cross_entropy] expected targets of dtype i64, got f32; convert them with .to(i64)");
  CHECK_ERROR_IS(cross_entropy_rows(x, zeros({3}, {i64})),
                 "[cross_entropy] expected 4 targets for logits (4, 10), got shape (3); reshape or slice them");
  CHECK_ERROR_IS(cross_entropy_rows(x, target(1), zeros({9})),
                 "[cross_entropy] expected weight of shape (10), got (9)");
  CHECK_ERROR_IS(softmax(zeros({2}, {i64}), 0),
                 "[softmax] expected a floating dtype, got i64; convert it with .to(f32)");
  CHECK_ERROR_IS(layer_norm(x, {4}), "[layer_norm] expected x to end in shape (4), got (4, 10); reshape x");
  CHECK_ERROR_IS(layer_norm(x, {10}, zeros({4})), "[layer_norm] expected weight of shape (10), got (4)");
  CHECK_ERROR_IS(
      batch_norm(zeros({1, 3}), {}, {}, {}, {}, true),
      "[batch_norm] expected more than 1 value per channel when training, got 1 in shape (1, 3); give a larger batch");
  CHECK_ERROR_IS(batch_norm(wide, {}, {}, {}, {}, false),
                 "[batch_norm] expected running_mean and running_var when not training, got none");
  CHECK_ERROR_IS(batch_norm(wide, {}, {}, zeros({4}), zeros({4}), true),
                 "[batch_norm] expected running statistics of shape (3), got (4); reshape them");
  CHECK_ERROR_IS(dropout(x, 1.5, {}), "[dropout] expected p in [0, 1], got 1.5");
  CHECK_THROWS_AS(softmax(x, 2), Error);
  CHECK_THROWS_AS(softmax(Tensor(), 0), Error);
}

TEST_CASE("a part of a tensor loses the elements that the whole loses there") {
  const PhiloxKey key{3, 4};
  for (const DType dtype : {f32, f64, bf16})
    for (const Shape& shape : {Shape{12}, {2, 24, 5}, {3, 4, 6, 2}, {2, 12, 700}, {1, 840, 3}, {0, 4}}) {
      const Tensor x = random_rows(shape, dtype, 1), entire = dropout(x, 0.3, key);
      for (int64_t dim = -shape.rank(); dim < shape.rank(); ++dim)
        for (const int64_t count : {1, 2, 3, 4}) {
          const int64_t size = x.size(dim);
          if (size % count != 0) continue;
          for (int64_t index = 0; index < count; ++index) {
            const auto own = [&](const Tensor& t) { return t.narrow(dim, index * size / count, size / count); };
            CHECK(equal(dropout(own(x), 0.3, key, {.dim = dim, .index = index, .count = count}),
                        own(entire).contiguous()));
          }
        }
    }
  CHECK_THROWS_WITH_AS(dropout(ones({4}), 0.3, key, {.index = 2, .count = 2}),
                       "[dropout] expected part.index >= 0 and below part.count, got 2 of 2", Error);
  CHECK_THROWS_AS(dropout(ones({4}), 0.3, key, {.dim = 1, .index = 0, .count = 2}), Error);
}

TEST_CASE("16-bit rows round exactly as a conversion does") {
  // A layer norm with weights of 0 passes its bias through: every seventh f16, and values where rounding changes.
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; bits += 7) values.push_back(float(std::bit_cast<Half>(uint16_t(bits))));
  for (float extra : {65519.f, 65520.f, 1e-8f, 3e-8f, 6.1e-5f, -70000.f, 3.4e38f, 1.00390625f, 1.01171875f})
    values.push_back(extra);
  const int64_t n = int64_t(values.size());
  for (DType half : {f16, bf16}) {
    const Tensor bias = Tensor::from(values, {n}).to(half);
    const auto got = doubles(layer_norm(zeros({2, n}, {half}), {n}, zeros({n}, {half}), bias).out),
               expected = doubles(bias);
    for (size_t i = 0; i < size_t(n); ++i)
      CHECK((got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))));
  }
}
