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
using lockstep::testing::Near, lockstep::testing::tolerance;

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

TEST_CASE("fp8: edges of the ranges") {
  struct Row {
    float x;
    int e4m3, e5m2;
  };
  const Row rows[] = {{0, 0, 0},
                      {-0.f, 0x80, 0x80},
                      {448, 0x7e, 0x5f},
                      {464, 0x7e, 0x5f},
                      {1e30f, 0x7e, 0x7b},
                      {-1e30f, 0xfe, 0xfb},
                      {INFINITY, 0x7e, 0x7b},
                      {-INFINITY, 0xfe, 0xfb},
                      {NAN, 0x7f, 0x7f},
                      {-NAN, 0x7f, 0x7f},
                      {0x1p-9f, 0x01, 0x18},
                      {0x1p-10f, 0x00, 0x14},
                      {0x1.8p-10f, 0x01, 0x16},
                      {0x1p-6f, 0x08, 0x24},
                      {0x1p-16f, 0x00, 0x01},
                      {0x1p-17f, 0, 0},
                      {0x1.8p-17f, 0, 0x01},
                      {57344, 0x7e, 0x7b},
                      {61440, 0x7e, 0x7b},
                      {1, 0x38, 0x3c},
                      {1e-45f, 0, 0}};
  for (const Row& r : rows) {
    CAPTURE(r.x);
    const Tensor x = full({1, 1}, double(r.x));
    CHECK(int(cast_fp8(x, {.format = Fp8Format::e4m3, .scale = one()}).codes.to_vector<uint8_t>()[0]) == r.e4m3);
    CHECK(int(cast_fp8(x, {.format = Fp8Format::e5m2, .scale = one()}).codes.to_vector<uint8_t>()[0]) == r.e5m2);
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
