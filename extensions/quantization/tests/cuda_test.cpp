// Quantized weights on the device, against the CPU.
#include <doctest/doctest.h>

#include <algorithm>

#include "extensions/quantization/codes.h"
#include "extensions/quantization/eight_bit.h"
#include "extensions/quantization/kernels.h"
#include "tensor/graph.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/limit_cases.h"
#include "tests/cuda/products.h"
#include "tests/messages.h"
#include "tests/tolerances.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using namespace testing;

namespace {

/// Like close(), for sums of many products, whose error grows with the numbers that are added, not with the sum.
bool near(const Tensor& there, const Tensor& here) {
  REQUIRE(there.device() == cuda0);
  REQUIRE(there.shape() == here.shape());
  const double apart = max(abs(there.to(cpu).to(f64) - here.to(f64))).item(), largest = max(abs(here.to(f64))).item();
  return apart <= testing::tolerance(Near::product, here.dtype()) * std::max(1.0, largest);
}

std::vector<LimitCase> limits_of_codes() {
  using T = Tensors;
  // Blocks along y process eight rows each, in a grid-stride loop.
  const auto alternating = [](int64_t row, int64_t rows) {
    return std::vector<double>{double(row) / double(rows), double(row / 8 % 65535) / 65535};
  };
  const LimitInput x{{1024}, f32}, weight{{4, 1024}, f32, 0, true}, codes{{1024}, i8}, scale{{}, f32};
  return {{.name = "quantized linear",
           .inputs = {x, weight},
           .run =
               [](T in) {  // the kernel for few rows, which linear() does not call for so many
                 const Quantized w = quantize(in[1], QuantFormat::group4);
                 Tensor out = empty({in[0].size(0), w.out}, {.device = in[0].device()});
                 kernels::matmul_quantized(in[0].device(), in[0], w.codes, w.scales, w.format, {}, {}, out);
                 return T{out};
               },
           .bound = tolerance(Near::quantised, f32),
           .places = alternating},
          {.name = "dynamic quantized linear",
           .inputs = {x, weight},
           .run = [](T in) { return T{linear(in[0], quantize(in[1], QuantFormat::row8), {}, {.dynamic = true})}; },
           .bound = tolerance(Near::quantised, f32),
           .places = alternating},
          {.name = "numbers of codes",
           .inputs = {codes, scale},
           .run =
               [](T in) {
                 return T{dequantize(Quantized{QuantFormat::row8, in[0], in[1], in[0].size(0), 1024})};
               },
           .bound = 0},
          {.name = "quantized linear to many",
           .inputs = {codes, scale, {{2, 1024}, f32, 0, true}},
           .run =
               [](T in) {
                 return T{linear(in[2], Quantized{QuantFormat::row8, in[0], in[1], in[0].size(0), 1024}).t()};
               },
           .bound = tolerance(Near::quantised, f32)}};
}
[[maybe_unused]] const bool added = (more_limit_cases().push_back(limits_of_codes), true);

}  // namespace

TEST_CASE("cuda matmul: weights in codes") {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{9, 96}, {5, 50}, {1, 1}, {70, 1056}})
    for (const QuantFormat format : {QuantFormat::row8, QuantFormat::group8, QuantFormat::group4})
      for (const int64_t rows : {1, 3, 8, 32, 33}) {
        CAPTURE(out);
        CAPTURE(in);
        CAPTURE(int(format));
        CAPTURE(rows);
        // 8 rows: scales so small that f16 would lose them; the scales of groups are f32
        const Tensor w = values({out, in}, 1, f32) * (rows == 8 ? 1e-8 : 1.0),
                     x = values({rows, in}, 2, f32) * (rows == 8 ? 1e8 : 1.0), b = values({out}, 3, f32);
        const Quantized here = quantize(w, format), there = quantize(w.to(cuda0), format);
        CHECK(equal(there.codes.to(cpu), here.codes));
        for (const DType dtype : {f32, f64, f16, bf16})
          CHECK(equal(dequantize(there, dtype).to(cpu), dequantize(here, dtype)));
        for (const Activation activation : {Activation::none, Activation::gelu_tanh})
          CHECK(near(linear(x.to(cuda0), there, b.to(cuda0), {.activation = activation}),
                     linear(x, here, b, {.activation = activation})));
        for (const DType dtype : {f16, bf16}) {
          if (rows == 8) continue;  // too large for f16
          const Tensor y = linear(x.to(cuda0).to(dtype), there, b.to(cuda0).to(dtype));
          CHECK(y.dtype() == dtype);
          // For many rows, the decoded weights are rounded to 16 bits, too.
          const Tensor exact = linear(x.to(f64), dequantize(here, rows > 32 ? dtype : f32).to(f64), b.to(f64));
          CHECK(allclose(y.to(cpu).to(f64), exact, testing::tolerance(Near::product, dtype) / 2,
                         testing::tolerance(Near::product, dtype) / 2));
        }
        if (rows <= 32)
          for (const int64_t row : {int64_t(0), rows - 1})
            CHECK(equal(linear(x.to(cuda0).narrow(0, row, 1), there), linear(x.to(cuda0), there).narrow(0, row, 1)));
        if (format != QuantFormat::row8) continue;
        for (const double threshold : {0.0, 0.8})
          for (const bool columns : {false, true}) {
            const QuantMatmulArgs matmul_args{.dynamic = true, .threshold = threshold, .full_columns = columns};
            CHECK(near(linear(x.to(cuda0), there, b.to(cuda0), matmul_args), linear(x, here, b, matmul_args)));
            if (rows == 3)
              CHECK(allclose(linear(x.to(cuda0).to(bf16), there, {}, matmul_args).to(cpu).to(f32),
                             linear(x, here, {}, matmul_args), 1e-2, 1e-2));
          }
      }
}

TEST_CASE("cuda matmul: weights in codes that begin anywhere in memory") {
  for (const int64_t in : {48, 96}) {
    const Quantized here = quantize(values({10, in}, 1, f32), QuantFormat::row8);
    const Tensor codes = empty({11 * in}, {.dtype = i8, .device = cuda0}).narrow(0, 5, 10 * in).view({10, in});
    codes.copy_(here.codes.to(cuda0));
    const Quantized there{QuantFormat::row8, codes, here.scales.to(cuda0), 10, in};
    const Tensor x = values({33, in}, 2, f32);
    CHECK(equal(dequantize(there).to(cpu), dequantize(here)));
    for (const int64_t rows : {1, 7, 33})
      for (const bool dynamic : {false, true}) {
        const Tensor some = x.narrow(0, 0, rows);
        CHECK(close(linear(some.to(cuda0), there, {}, {.dynamic = dynamic}),
                    linear(some, here, {}, {.dynamic = dynamic})));
      }
  }
}

TEST_CASE("cuda matmul: a weight in codes that is decoded in parts") {
  const int64_t out = 320, in = 65536;  // 80 MiB in f32
  manual_seed(3);
  const Quantized here{QuantFormat::row8, randint(-127, 128, {out, in}, {.device = cpu}).to(i8),
                       full({out}, 1e-4, {.device = cpu}), out, in};
  const Quantized there{QuantFormat::row8, here.codes.to(cuda0), here.scales.to(cuda0), out, in};
  const Tensor x = randn({33, in}, {.device = cpu}) * 0.1, b = randn({out}, {.device = cpu});
#if defined(SIMT_CPU)
  fake::take_launches();
#endif
  const Tensor y = linear(x.to(cuda0), there, b.to(cuda0));
#if defined(SIMT_CPU)
  auto launches = fake::take_launches();
  CHECK(launches["read_quantized"] == 2);
  CHECK(launches["matmul"] == 2);
  CHECK(launches["matmul_quantized"] == 0);
#endif
  CHECK(allclose(y.to(cpu), linear(x, here, b), 1e-4, 1e-4));
}

TEST_CASE("cuda matmul: gradients through a weight in codes stay on the device, in a recording too") {
  for (const QuantFormat format : {QuantFormat::row8, QuantFormat::group8, QuantFormat::group4})
    for (const DType dtype : {f32, bf16}) {
      const Quantized here = quantize(values({12, 40}, 1, f32), format),
                      there{format, here.codes.to(cuda0), here.scales.to(cuda0), 12, 40};
      const Tensor g = values({6, 12}, 2, dtype), w = handle_of(there, {}, dtype), start = g.to(cuda0);
      const Tensor wanted = matmul(g, handle_of(here, {}, dtype));
      synchronize(cuda0);
#if defined(SIMT_CPU)
      fake::take_to_host();
#endif
      const Tensor grad = matmul(start, w);
#if defined(SIMT_CPU)
      CHECK(fake::take_to_host().copies == 0);
#endif
      CHECK(close(grad, wanted));
      Tensor again;
      Graph graph(cuda0);
      graph.record([&] { again = matmul(start, w); });
      start.fill_(0);
      graph.replay();
      CHECK(equal(again.to(cpu), zeros({6, 40}, {.dtype = dtype, .device = cpu})));
      start.copy_(g);
      graph.replay();
      CHECK(equal(again, grad));
    }
}

TEST_CASE("cuda: optimizers with 8-bit moments have no kernel") {
  Variable w(randn({8, 6}, {.device = cuda0}), true);
  w.grad() = randn({8, 6}, {.device = cuda0});
  optim::Adam8bit eight({w}, {.min_8bit_size = 0});
  CHECK_ERROR(eight.step(), "no cuda kernel for optimizer state in 8 bits");
}
