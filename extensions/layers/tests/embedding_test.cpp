// max_norm, norm_type and scale_grad_by_freq against PyTorch's formulas in f64.
#include "extensions/layers/embedding.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "nn/nn.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("embedding: rows that are looked up are limited to max_norm, in place") {
  manual_seed(5);
  const int64_t width = 6;
  for (const DType dtype : {f32, f64, bf16}) {
    for (const double p : {1., 2., 3., double(INFINITY)}) {
      INFO("dtype ", dtype, ", p ", p);
      const Variable weight(randn({9, width}).to(dtype), true);
      const Tensor before = weight.tensor().to(f64).clone(), index = Tensor::from<int64_t>({3, 0, 3, 8}, {2, 2});
      const Variable rows = embedding(weight, index, {.max_norm = 1.5, .norm_type = p});
      CHECK(rows.shape() == Shape({2, 2, width}));
      CHECK(equal(rows.tensor(), embedding(weight.tensor(), index)));
      const auto old = before.to_vector<double>(), now = weight.tensor().to(f64).to_vector<double>();
      for (int64_t row = 0; row < 9; ++row) {
        double size = 0;
        for (int64_t i = 0; i < width; ++i) {
          const double x = std::abs(old[size_t(row * width + i)]);
          size = std::isinf(p) ? std::max(size, x) : size + std::pow(x, p);
        }
        if (!std::isinf(p)) size = std::pow(size, 1 / p);
        const bool limited = size > 1.5 && (row == 0 || row == 3 || row == 8);
        for (int64_t i = 0; i < width; ++i) {
          const size_t at = size_t(row * width + i);
          if (limited)
            CHECK(now[at] == doctest::Approx(old[at] * 1.5 / (size + 1e-7)).epsilon(dtype == bf16 ? 1e-2 : 1e-5));
          else CHECK(now[at] == old[at]);
        }
      }
    }
  }
}

TEST_CASE("embedding: a row's gradient is divided by its frequency") {
  for (const int64_t padding : {-1, 1}) {
    const Variable weight(ones({4, 2}, {.dtype = f64}), true);
    const Tensor index = Tensor::from<int64_t>({2, 1, 2, 2, 1, 3}, {3, 2});
    const Tensor scale = Tensor::from<double>({1, 2, 3, 4, 5, 6}, {3, 2, 1});
    const Variable rows = embedding(weight, index, {.scale_grad_by_freq = true}, padding);
    CHECK(equal(rows.tensor(), ones({3, 2, 2}, {.dtype = f64})));
    sum(mul(rows, Variable(scale))).backward();
    const double one = padding == 1 ? 0 : (2 + 5) / 2.;
    const std::vector<double> wanted{0, 0, one, one, (1 + 3 + 4) / 3., (1 + 3 + 4) / 3., 6, 6};
    const auto got = weight.grad().to_vector<double>();
    for (size_t i = 0; i < wanted.size(); ++i) CHECK(got[i] == doctest::Approx(wanted[i]).epsilon(1e-12));
  }
}

TEST_CASE("embedding: a layer with options") {
  manual_seed(6);
  nn::Embedding words = nn::with_options(nn::Embedding({.num = 5, .dim = 3, .padding_index = 0}),
                                         {.max_norm = 0.5, .scale_grad_by_freq = true});
  const Tensor index = Tensor::from<int64_t>({0, 2, 2});
  sum(words(index)).backward();
  CHECK(equal(words.weight.grad().select(0, 2), ones({3})));  // 2 / 2
  CHECK(equal(words.weight.grad().select(0, 0), zeros({3})));
  CHECK(norm(words.weight.tensor()[2]).item() <= 0.5 + 1e-6);
  CHECK(words(zeros({0}, {.dtype = i64})).shape() == Shape({0, 3}));
  nn::Sequential net(std::move(words), nn::Linear({.in = 3, .out = 2}));  // the options move with the layer
  net.zero_grad();
  CHECK(net(Variable(index)).shape() == Shape({3, 2}));
  CHECK_ERROR(nn::with_options(nn::Embedding({.num = 5, .dim = 3}), {.max_norm = -1}),
              "expected max_norm >= 0, got -1");
  CHECK_ERROR(nn::with_options(nn::Embedding({.num = 5, .dim = 3}), {.norm_type = 0}), "expected norm_type > 0, got 0");
  CHECK_ERROR(nn::with_options(nn::with_options(nn::Embedding({.num = 5, .dim = 3}), {.max_norm = 1}), {}),
              "without options");
}

TEST_CASE("embedding: a use of the weight before it was limited is an error in backward") {
  const Variable weight(full({3, 2}, 5), true);
  const Variable before = sum(square(weight));
  const Variable rows = embedding(weight, Tensor::from<int64_t>({1}), {.max_norm = 1});
  CHECK_ERROR(add(before, sum(rows)).backward(), "changed in place");
}
