// Matrix products on the device against the CPU: layouts, batches and fused epilogues. Every case runs twice, because
// plans are cached. Shapes and dtypes at large are tested by tests/tensor/matmul_test.cpp, run with
// LOCKSTEP_TEST_DEVICE=cuda.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/quantized.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/messages.h"
#include "tests/tolerances.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using testing::Near;

namespace {

const Device cuda0{Device::Type::cuda, 0};

/// Integers divided by 8.
Tensor values(const Shape& shape, uint32_t seed, DType dtype) {
  std::vector<double> v(size_t(numel_of(shape)));
  uint32_t state = seed * 2654435761u + 1;
  for (double& x : v) {
    state = state * 1664525u + 1013904223u;
    x = (int(state >> 24) % 17 - 8) / 8.0;
  }
  const Tensor made = empty(shape, {.dtype = f64, .device = cpu});
  std::copy(v.begin(), v.end(), made.data<double>());
  return made.to(dtype);
}

bool close(const Tensor& there, const Tensor& here, Near what = Near::product) {
  REQUIRE(there.device() == cuda0);
  REQUIRE(there.shape() == here.shape());
  const double bound = testing::tolerance(what, here.dtype());
  return allclose(there.to(cpu).to(f64), here.to(f64), bound, bound);
}

/// As close(), for sums of many products: their error grows with the numbers that are added, not with the sum.
bool near(const Tensor& there, const Tensor& here) {
  REQUIRE(there.device() == cuda0);
  REQUIRE(there.shape() == here.shape());
  const double apart = max(abs(there.to(cpu).to(f64) - here.to(f64))).item(), largest = max(abs(here.to(f64))).item();
  return apart <= testing::tolerance(Near::product, here.dtype()) * std::max(1.0, largest);
}

}  // namespace

TEST_CASE("cuda matmul: layouts and batches") {
  struct Row {
    Shape a, b;
    bool a_t, b_t;
    Shape expand;
  };  // a_t: a is stored transposed; expand: a is broadcast along these batch dimensions
  const Row rows[] = {
      {{1, 1}, {1, 1}, 0, 0, {}},       {{33, 31}, {31, 5}, 0, 0, {}},        {{33, 31}, {31, 5}, 1, 0, {}},
      {{33, 31}, {31, 5}, 0, 1, {}},    {{33, 31}, {31, 5}, 1, 1, {}},        {{1, 64}, {64, 40}, 1, 1, {}},
      {{40, 64}, {64, 1}, 1, 1, {}},    {{7, 1}, {1, 9}, 1, 1, {}},           {{3, 4, 5}, {3, 5, 6}, 0, 0, {}},
      {{3, 4, 5}, {3, 5, 6}, 1, 1, {}}, {{4, 5}, {3, 2, 5, 6}, 0, 1, {3, 2}}, {{2, 1, 4, 5}, {1, 3, 5, 6}, 0, 0, {}},
      {{3, 0, 5}, {3, 5, 6}, 0, 0, {}}, {{3, 4, 0}, {3, 0, 6}, 0, 0, {}}};
  for (const Row& r : rows) {
    for (const DType dtype : {f32, f64, f16, bf16}) {
      CAPTURE(r.a);
      CAPTURE(r.b);
      CAPTURE(dtype);
      CAPTURE(r.a_t);
      CAPTURE(r.b_t);
      Tensor a = values(r.a, 1, dtype), b = values(r.b, 2, dtype);
      Tensor a1 = a.to(cuda0), b1 = b.to(cuda0);
      if (r.a_t) a1 = a1.t().contiguous().t();
      if (r.b_t) b1 = b1.t().contiguous().t();
      for (int i = 0; i < 2; ++i) CHECK(close(matmul(a1, b1), matmul(a, b)));
    }
  }
}

TEST_CASE("cuda matmul: heads of a fused projection, rows far apart, addresses that are not aligned") {
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(dtype);
    const Tensor qkv = values({2, 9, 3 * 4 * 8}, 3, dtype), there = qkv.to(cuda0);
    const auto head = [](const Tensor& x, int part) {
      return x.narrow(2, part * 32, 32).reshape({2, 9, 4, 8}).transpose(1, 2);
    };
    CHECK(close(matmul(head(there, 0), head(there, 1).t()), matmul(head(qkv, 0), head(qkv, 1).t())));
    const Tensor x = values({50, 61}, 4, dtype), y = values({61, 50}, 5, dtype), x1 = x.to(cuda0), y1 = y.to(cuda0);
    CHECK(close(matmul(x1.slice(1, 1, 40).slice(0, 1, 50, 3), y1.slice(0, 3, 42).slice(1, 5, 44)),
                matmul(x.slice(1, 1, 40).slice(0, 1, 50, 3), y.slice(0, 3, 42).slice(1, 5, 44))));
  }
}

TEST_CASE("cuda matmul: bias, activation and the value before it") {
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{5, 16, 24}, {33, 31, 13}, {1, 8, 8}, {4, 0, 8}, {0, 8, 8}}) {
    for (const DType dtype : {f32, f64, f16, bf16}) {
      for (const Activation activation :
           {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
        for (const bool with_bias : {true, false}) {
          for (const bool with_pre : {false, true}) {
            CAPTURE(rows);
            CAPTURE(out);
            CAPTURE(dtype);
            CAPTURE(int(activation));
            CAPTURE(with_bias);
            CAPTURE(with_pre);
            const Tensor x = values({rows, in}, 6, dtype), w = values({out, in}, 7, dtype),
                         bias = with_bias ? values({out}, 8, dtype) : Tensor();
            Tensor pre, pre1;
            const Tensor y = linear(x, w, bias, activation, with_pre ? &pre : nullptr);
            const Tensor y1 = linear(x.to(cuda0), w.to(cuda0), with_bias ? bias.to(cuda0) : bias, activation,
                                     with_pre ? &pre1 : nullptr);
            CHECK(close(y1, y, activation == Activation::gelu_tanh ? Near::product_gelu : Near::product));
            if (with_pre) CHECK(close(pre1, pre));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda matmul: alpha and beta; beta 0 ignores the old content") {
  for (const DType dtype : {f32, f64, f16, bf16}) {
    for (const int64_t k : {6, 0}) {
      for (const auto& [alpha, beta] : {std::pair{2.0, 0.5}, {1.0, 1.0}, {-1.0, 0.0}, {0.0, 1.0}}) {
        CAPTURE(dtype);
        CAPTURE(k);
        CAPTURE(alpha);
        CAPTURE(beta);
        const Tensor c = beta == 0 ? full({4, 5}, NAN, {.dtype = dtype, .device = cpu}) : values({4, 5}, 9, dtype),
                     a = values({4, k}, 10, dtype), b = values({k, 5}, 11, dtype);
        CHECK(close(addmm(c.to(cuda0), a.to(cuda0), b.to(cuda0), beta, alpha), addmm(c, a, b, beta, alpha)));
      }
    }
  }
}

TEST_CASE("cuda matmul: a residual in other memory, also where it is not aligned") {
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{5, 16, 24}, {33, 31, 13}, {1, 8, 8}, {4, 0, 8}, {0, 8, 8}, {3, 8, 0}}) {
    for (const DType dtype : {f32, f64, f16, bf16}) {
      for (const bool with_bias : {true, false}) {
        for (const int64_t first : {0, 1, 8}) {
          CAPTURE(rows);
          CAPTURE(out);
          CAPTURE(dtype);
          CAPTURE(with_bias);
          CAPTURE(first);
          const Tensor x = values({rows, in}, 6, dtype), w = values({out, in}, 7, dtype),
                       bias = with_bias ? values({out}, 8, dtype) : Tensor(), flat = values({rows * out + 9}, 9, dtype),
                       there = flat.to(cuda0);
          const auto residual = [&, n = rows * out, shape = Shape{rows, out}](const Tensor& memory) {
            return memory.narrow(0, first, n).view(shape);
          };
          CHECK(close(linear_add(residual(there), x.to(cuda0), w.to(cuda0), with_bias ? bias.to(cuda0) : bias),
                      linear_add(residual(flat), x, w, bias)));
          CHECK(equal(there.to(cpu), flat));
        }
      }
    }
  }
}

TEST_CASE("cuda matmul: gradients of a linear layer, through gelu") {
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{33, 16, 24}, {7, 31, 13}, {1, 8, 8}, {0, 8, 8}, {5, 8, 0}}) {
    for (const DType dtype : {f32, f64, f16, bf16}) {
      CAPTURE(rows);
      CAPTURE(out);
      CAPTURE(dtype);
      const Tensor g = values({rows, out}, 1, dtype), x = values({rows, in}, 2, dtype), w = values({out, in}, 3, dtype),
                   kept = values({rows, in}, 4, dtype);
      for (int i = 0; i < 2; ++i) {
        CHECK(close(matmul(g.to(cuda0).t(), x.to(cuda0)), matmul(g.t(), x)));
        for (const PointwiseOp op : {PointwiseOp::gelu_tanh, PointwiseOp::gelu_erf, PointwiseOp::relu})
          CHECK(close(matmul_unary_grad(g.to(cuda0), w.to(cuda0), op, {}, kept.to(cuda0)),
                      matmul_unary_grad(g, w, op, {}, kept)));
      }
    }
  }
}

TEST_CASE("cuda matmul: f32 from operands of 16 bits is not rounded") {
  for (const DType dtype : {f16, bf16}) {
    const Tensor a = values({9, 40}, 1, dtype), b = values({40, 16}, 2, dtype), start = values({9, 16}, 3, f32);
    for (const bool adds : {false, true}) {
      const Tensor there = start.to(cuda0).clone();
      matmul_into(there, a.to(cuda0), b.to(cuda0), adds);
      const Tensor exact = matmul(a.to(f64), b.to(f64));
      const double bound = testing::tolerance(Near::wide_product, f32);
      CHECK(allclose(there.to(cpu).to(f64), adds ? add(start.to(f64), exact) : exact, bound, bound));
    }
  }
}

TEST_CASE("cuda matmul: NaN goes through relu, and tf32 is a choice") {
  const Tensor x = full({2, 8}, std::numeric_limits<double>::quiet_NaN(), {.dtype = f32, .device = cuda0}),
               w = full({8, 8}, 1, {.dtype = f32, .device = cuda0});
  for (const Activation activation : {Activation::relu, Activation::gelu_tanh})
    CHECK(std::isnan(linear(x, w, {}, activation).to_vector<float>()[0]));
  CHECK(float32_matmul_precision() == MatmulPrecision::full);
  const Tensor a = values({32, 32}, 12, f32), b = values({32, 32}, 13, f32);
  set_float32_matmul_precision(MatmulPrecision::tf32);
  const Tensor quick = matmul(a.to(cuda0), b.to(cuda0));
  set_float32_matmul_precision(MatmulPrecision::full);
  const double bound = testing::tolerance(Near::product_tf32, f32);
  CHECK(allclose(quick.to(cpu), matmul(a, b), bound, bound));
}

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
          // Weights for many rows are rounded to 16 bits, too.
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
            const QuantMatmulArgs how{.dynamic = true, .threshold = threshold, .whole_columns = columns};
            CHECK(near(linear(x.to(cuda0), there, b.to(cuda0), how), linear(x, here, b, how)));
            if (rows == 3)
              CHECK(allclose(linear(x.to(cuda0).to(bf16), there, {}, how).to(cpu).to(f32), linear(x, here, {}, how),
                             1e-2, 1e-2));
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
