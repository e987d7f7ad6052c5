// Matrix products on the device against the CPU: layouts, batches and fused epilogues. Every case runs twice, because
// plans are cached. Shapes and dtypes at large are tested by tests/tensor/matmul_test.cpp, run with
// LOCKSTEP_TEST_DEVICE=cuda.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/products.h"
#include "tests/tolerances.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using namespace testing;

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
  for (const Row& r : rows)
    for (const DType dtype : {f32, f64, f16, bf16}) {
      INFO("a ", r.a, ", b ", r.b, ", dtype ", dtype, ", transposed ", r.a_t, " ", r.b_t);
      Tensor a = values(r.a, 1, dtype), b = values(r.b, 2, dtype);
      Tensor a1 = a.to(cuda0), b1 = b.to(cuda0);
      if (r.a_t) a1 = a1.t().contiguous().t();
      if (r.b_t) b1 = b1.t().contiguous().t();
      for (int i = 0; i < 2; ++i) CHECK(close(matmul(a1, b1), matmul(a, b)));
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
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{5, 16, 24}, {33, 31, 13}, {1, 8, 8}, {4, 0, 8}, {0, 8, 8}})
    for (const DType dtype : {f32, f64, f16, bf16})
      for (const Activation activation :
           {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu})
        for (const bool with_bias : {true, false})
          for (const bool with_pre : {false, true}) {
            INFO("rows ", rows, ", out ", out, ", dtype ", dtype, ", activation ", int(activation), ", with_bias ",
                 with_bias, ", with_pre ", with_pre);
            const auto on = [&, in = in, out = out, rows = rows](Device device, Tensor* pre) {
              const auto given = [&](const Shape& s, uint32_t seed) { return values(s, seed, dtype).to(device); };
              return linear(given({rows, in}, 6), given({out, in}, 7), with_bias ? given({out}, 8) : Tensor(),
                            activation, with_pre ? pre : nullptr);
            };
            Tensor pre, pre1;
            const Tensor y = on(cpu, &pre), y1 = on(cuda0, &pre1);
            CHECK(close(y1, y, activation == Activation::gelu_tanh ? Near::product_gelu : Near::product));
            if (with_pre) CHECK(close(pre1, pre));
          }
}

TEST_CASE("cuda matmul: alpha and beta; beta 0 ignores the old content") {
  for (const DType dtype : {f32, f64, f16, bf16})
    for (const int64_t k : {6, 0})
      for (const auto& [alpha, beta] : {std::pair{2.0, 0.5}, {1.0, 1.0}, {-1.0, 0.0}, {0.0, 1.0}}) {
        INFO("dtype ", dtype, ", k ", k, ", alpha ", alpha, ", beta ", beta);
        const Tensor c = beta == 0 ? full({4, 5}, NAN, {.dtype = dtype, .device = cpu}) : values({4, 5}, 9, dtype),
                     a = values({4, k}, 10, dtype), b = values({k, 5}, 11, dtype);
        CHECK(close(addmm(c.to(cuda0), a.to(cuda0), b.to(cuda0), beta, alpha), addmm(c, a, b, beta, alpha)));
      }
}

TEST_CASE("cuda matmul: a residual in other memory, also where it is not aligned") {
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{5, 16, 24}, {33, 31, 13}, {1, 8, 8}, {4, 0, 8}, {0, 8, 8}, {3, 8, 0}})
    for (const DType dtype : {f32, f64, f16, bf16})
      for (const bool with_bias : {true, false})
        for (const int64_t first : {0, 1, 8}) {
          INFO("rows ", rows, ", out ", out, ", dtype ", dtype, ", with_bias ", with_bias, ", first ", first);
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

TEST_CASE("cuda matmul: gradients of a linear layer, through gelu") {
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{33, 16, 24}, {7, 31, 13}, {1, 8, 8}, {0, 8, 8}, {5, 8, 0}})
    for (const DType dtype : {f32, f64, f16, bf16}) {
      INFO("rows ", rows, ", out ", out, ", dtype ", dtype);
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

TEST_CASE("cuda matmul: f32 from operands of 16 bits is not rounded") {
  for (const DType dtype : {f16, bf16}) {
    const Tensor a = values({9, 40}, 1, dtype), b = values({40, 16}, 2, dtype), start = values({9, 16}, 3, f32);
    for (const bool adds : {false, true}) {
      const Tensor there = start.to(cuda0).clone();
      matmul_into(there, a.to(cuda0), b.to(cuda0), adds);
      const Tensor exact = matmul(a.to(f64), b.to(f64));
      const double bound = tolerance(Near::wide_product, f32);
      CHECK(allclose(there.to(cpu).to(f64), adds ? add(start.to(f64), exact) : exact, bound, bound));
    }
  }
}

TEST_CASE("cuda matmul: NaN goes through relu, and tf32 is a choice") {
  const Tensor x = full({2, 8}, std::numeric_limits<double>::quiet_NaN(), there), w = full({8, 8}, 1, there);
  for (const Activation activation : {Activation::relu, Activation::gelu_tanh})
    CHECK(std::isnan(linear(x, w, {}, activation).to_vector<float>()[0]));
  CHECK(float32_matmul_precision() == MatmulPrecision::full);
  const Tensor a = values({32, 32}, 12, f32), b = values({32, 32}, 13, f32);
  set_float32_matmul_precision(MatmulPrecision::tf32);
  const Tensor quick = matmul(a.to(cuda0), b.to(cuda0));
  set_float32_matmul_precision(MatmulPrecision::full);
  const double bound = tolerance(Near::product_tf32, f32);
  CHECK(allclose(quick.to(cpu), matmul(a, b), bound, bound));
}
