// 8-bit floats: rounding against an exhaustive search for the nearest code, shapes of results, rejected calls.
// PyTorch's codes: training_test.cpp.
#include <doctest/doctest.h>

#include <cmath>

#include "extensions/fp8/matrix.h"
#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/threads.h"
#include "tests/tolerances.h"

using namespace lockstep;
using testing::Near, testing::tolerance;

namespace {

uint8_t nearest(float x, Fp8Format format, const std::vector<float>& numbers) {
  const float at = std::min(std::fabs(x), largest_fp8(format));
  size_t best = 0;
  for (size_t i = 0; i < 127 && std::isfinite(numbers[i]); ++i) {
    const double now = std::fabs(double(numbers[i]) - at), before = std::fabs(double(numbers[best]) - at);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return uint8_t(best | (std::signbit(x) ? 0x80 : 0));
}

Tensor one(double value = 1) { return full({1}, value); }

}  // namespace

TEST_CASE("fp8: the nearest code, half to even, of every dtype, with the codes turned, for any number of threads") {
  manual_seed(5);
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    const auto numbers = read_fp8(arange(256).to(u8), format).to_vector<float>();
    for (const DType dtype : {f32, f16, bf16}) {
      for (const Shape& shape : {Shape{1, 7}, {130, 67}, {64, 128}}) {
        CAPTURE(shape);
        CAPTURE(dtype);
        const Tensor x = mul(randn(shape), exp(mul_scalar(randn(shape), 3))).to(dtype);
        const Tensor observed = one(0);
        const Fp8Cast made = cast_fp8(x, {.format = format, .scale = one(4), .amax = observed, .turned = true});
        CHECK(observed.item() == amax(abs(x.to(f32))).item());
        CHECK(equal(made.codes, made.turned.t().contiguous()));
        const auto codes = made.codes.to_vector<uint8_t>();
        const auto values = mul_scalar(x.to(f32), 4).to_vector<float>();
        int wrong = 0;
        for (size_t i = 0; i < codes.size(); ++i) wrong += codes[i] != nearest(values[i], format, numbers);
        CHECK(wrong == 0);
        const Threads threads(3);
        CHECK(equal(made.turned,
                    cast_fp8(x, {.format = format, .scale = one(4), .straight = false, .turned = true}).turned));
      }
    }
  }
}

// Ties and numbers beyond the ranges are in PyTorch's file.
TEST_CASE("fp8: edges of the ranges") {
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    const Tensor numbers = read_fp8(arange(256).to(u8), format);
    const auto values = numbers.to_vector<float>();
    const auto codes = cast_fp8(numbers.view({1, 256}), {.format = format, .scale = one()}).codes.to_vector<uint8_t>();
    for (size_t i = 0; i < 256; ++i) {  // numbers keep their codes, infinities saturate, and NaN has one code
      CAPTURE(i);
      const int saturated = nearest(values[i], format, values);
      CHECK(int(codes[i]) == (std::isnan(values[i]) ? 0x7f : std::isinf(values[i]) ? saturated : int(i)));
    }
  }
}

TEST_CASE("fp8: products of any size, and of none") {
  manual_seed(6);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{16, 32, 48}, {5, 7, 3}, {0, 4, 4}, {4, 4, 0}}) {
    CAPTURE(m);
    CAPTURE(k);
    const Tensor a = randn({m, k}), b = randn({n, k}), bias = randn({n});
    const Fp8Matrix a8{cast_fp8(a, {.scale = one(50)}).codes, Fp8Format::e4m3, one(0.02)},
        b8{cast_fp8(b, {.format = Fp8Format::e5m2, .scale = one(8)}).codes, Fp8Format::e5m2, one(0.125)};
    const auto read = [](const Fp8Matrix& x) { return mul(read_fp8(x.codes, x.format), x.scale_inv).to(f64); };
    const Tensor exact = add(matmul(read(a8), read(b8).t()), bias.to(f64));
    const Tensor got = matmul_fp8(a8, b8, bias, f32).to(f64);
    if (default_device().is_cpu() || exact.numel() == 0) CHECK(allclose(got, exact, 1e-5, 1e-5));
    else CHECK(max(abs(got - exact)).item() <= tolerance(Near::product_fp8, f32) * max(abs(exact)).item());
    const Tensor short_bias = bias.to(bf16);
    CHECK(allclose(matmul_fp8(a8, b8, short_bias).to(f64), exact, 2e-2, 2e-2));
  }
}

TEST_CASE("fp8: unsupported arguments are rejected") {
  const Tensor x = randn({2, 3}), codes = zeros({2, 3}, {.dtype = u8});
  CHECK_ERROR(cast_fp8(x.to(f64), {.scale = one()}), "[cast_fp8] expected x (R, C) in f32, f16 or bf16");
  CHECK_ERROR(cast_fp8(x, {.scale = zeros({2})}), "[cast_fp8] expected a scale f32 of one element");
  CHECK_ERROR(cast_fp8(x, {.scale = one(), .amax = zeros({1}).to(f64)}), "expected an amax f32 of one element");
  CHECK_ERROR(read_fp8(x, Fp8Format::e4m3), "[read_fp8] expected codes u8");
  CHECK_ERROR(read_fp8(codes, Fp8Format::e4m3, f16), "[read_fp8] expected the dtype f32 or bf16");
  const Fp8Matrix good{codes, Fp8Format::e4m3, one()}, longer{zeros({2, 4}, {.dtype = u8}), Fp8Format::e4m3, one()};
  CHECK_ERROR(matmul_fp8(good, longer), "a (M, K) and b (N, K) with one K");
  CHECK_ERROR(matmul_fp8(good, good, zeros({2})), "[matmul_fp8] expected a bias bf16");
  CHECK_ERROR(matmul_fp8(good, good, {}, f64), "[matmul_fp8] expected the result's dtype f32, f16 or bf16");
  CHECK_ERROR(matmul_fp8({x, Fp8Format::e4m3, one()}, good), "[matmul_fp8] expected codes u8");
}
