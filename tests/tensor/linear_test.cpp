// Products of linear layers: with bias, activation and residual, and written to memory that the caller gives.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/tensor/products.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace testing::products;

TEST_CASE("linear: bias, activation and the value before it") {
  for (const Shape& shape : {Shape{12}, {5, 12}, {2, 3, 12}, {300, 12}, {0, 12}})
    for (DType dtype : {f32, f64, bf16})
      for (int64_t units : {1, 7, 300})
        for (Activation activation :
             {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
          INFO("shape ", shape, ", dtype ", dtype, ", units ", units, ", activation ", int(activation));
          const Tensor x = values(shape, 1, dtype), w = values({units, 12}, 2, dtype), bias = values({units}, 3, dtype);
          Tensor pre;
          const Tensor out = linear(x, w, bias, activation, &pre);
          Shape wanted_shape = shape;
          wanted_shape[shape.rank() - 1] = units;
          CHECK(out.shape() == wanted_shape);
          REQUIRE(pre.shape() == wanted_shape);
          const int64_t rows = x.numel() / 12;
          auto wanted = reference(x, w.t().contiguous(), 1, rows, units, 12);
          const auto shift = bias.to_vector<double>();
          for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += shift[i % size_t(units)];
          check_close(pre, wanted, tolerance_of(dtype));
          for (double& v : wanted) {
            if (activation == Activation::relu) v = std::max(v, 0.0);
            if (activation == Activation::gelu_tanh)
              v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
            if (activation == Activation::gelu_erf) v = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
            if (activation == Activation::silu) v = v / (1 + std::exp(-v));
          }
          check_close(out, wanted, tolerance_of(dtype));
          if (activation == Activation::none && dtype == f32) CHECK(equal(linear(x, w, bias), out));
        }
}

TEST_CASE("linear with an activation is bit-identical to linear followed by it; gelu_tanh only on the CPU") {
  const Tensor x = rand({130, 300}), w = rand({257, 300}) - full({257, 300}, 0.5), bias = rand({257});
  const Tensor pre = linear(x, w, bias);
  CHECK(equal(linear(x, w, bias, Activation::relu), relu(pre)));
  const Tensor gelu = linear(x, w, bias, Activation::gelu_tanh);
  if (default_device().is_cpu()) CHECK(equal(gelu, gelu_tanh(pre)));
  else check_close(gelu, gelu_tanh(pre).to_vector<double>(), tolerance_of(f32));
  CHECK(equal(linear(x, w, bias, Activation::gelu_erf), gelu_erf(pre)));
  CHECK(equal(linear(x, w, bias, Activation::silu), silu(pre)));
}

TEST_CASE("linear_add adds the residual to sums in f32; on the CPU the result is rounded only once") {
  struct Row {
    Shape x;
    int64_t units;
  };
  const Row rows[] = {{{12}, 7},    {{5, 12}, 1}, {{2, 3, 12}, 33}, {{300, 12}, 300}, {{0, 12}, 4},
                      {{4, 12}, 0}, {{3, 0}, 5},  {{1, 6000}, 40},  {{30, 2100}, 70}, {{200, 64}, 1700}};
  for (const Row& r : rows)
    for (const DType dtype : {f32, f64, f16, bf16})
      for (const bool with_bias : {true, false}) {
        INFO("x ", r.x, ", units ", r.units, ", dtype ", dtype, ", with_bias ", with_bias);
        const int64_t k = r.x.back();
        const double scale = 1 / std::sqrt(double(std::max<int64_t>(k, 1)));
        Shape shape = r.x;
        shape[shape.rank() - 1] = r.units;
        const Tensor x = values(r.x, 1, dtype), w = mul_scalar(values({r.units, k}, 2, dtype), scale),
                     bias = with_bias ? values({r.units}, 3, dtype) : Tensor(), residual = values(shape, 4, dtype);
        const Tensor out = linear_add(residual, x, w, bias);
        REQUIRE(out.shape() == shape);
        CHECK(equal(residual, values(shape, 4, dtype)));
        const Tensor exact = add(residual.to(f64), linear(x.to(f64), w.to(f64), with_bias ? bias.to(f64) : bias));
        // Half an ulp of the dtype plus the error of the sums: rounding twice, as cuBLASLt may do before it adds
        // the bias, would exceed that.
        const double half_ulp = dtype == bf16 ? 1. / 256 : dtype == f16 ? 1. / 2048 : 0;
        if (half_ulp == 0 || default_device().is_cpu()) CHECK(allclose(out.to(f64), exact, half_ulp * 1.001, 1e-5));
        else check_close(out, exact.to_vector<double>(), tolerance_of(dtype));
        // A residual that is not contiguous gives the same result.
        CHECK(equal(linear_add(residual.transpose(0, -1).clone().transpose(0, -1), x, w, bias), out));
        if (!default_device().is_cpu()) continue;
        if (half_ulp == 0) CHECK(equal(out, add(residual, linear(x, w, bias))));
        for (const int threads : {1, 3}) {
          const Threads some(threads);
          CHECK(equal(linear_add(residual, x, w, bias), out));
        }
      }
  const Tensor x = zeros({3, 6}), w = zeros({5, 6});
  CHECK_ERROR_IS(linear_add(zeros({5}), x, w), "[linear_add] expected a residual (3, 5), got (5)");
  CHECK_ERROR(linear_add(zeros({3, 5}, {.dtype = f64}), x, w), "[linear_add] expected one dtype");
}

TEST_CASE("linear_into, called for a chunk of rows at a time, is bit-identical to linear on the CPU") {
  const Tensor x = rand({130, 300}), w = rand({257, 300}) - full({257, 300}, 0.5), bias = rand({257});
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::silu}) {
    Tensor expected_pre;
    const Tensor expected = linear(x, w, bias, activation, &expected_pre), out = zeros({130, 257}),
                 pre = zeros({130, 257});
    for (const int64_t chunk : {130, 37, 1}) {
      for (int64_t i = 0; i < 130; i += chunk) {
        const auto rows = [&](const Tensor& t) { return t.narrow(0, i, std::min(chunk, 130 - i)); };
        linear_into(rows(out), rows(x), w, bias, activation, rows(pre));
      }
      if (default_device().is_cpu()) CHECK((equal(out, expected) && equal(pre, expected_pre)));
      else check_close(out, expected.to_vector<double>(), tolerance_of(f32));
    }
  }
  const auto message_of = [&](const Tensor& out, const Tensor& pre) {
    return message([&] { linear_into(out, x, w, bias, Activation::none, pre); });
  };
  for (const Tensor& wrong : {zeros({257, 130}).t(), zeros({129, 257}), zeros({130, 257}, {.dtype = f64})}) {
    CHECK(contains(message_of(wrong, {}), "[linear_into] expected contiguous memory of 33410 elements in f32"));
    CHECK(contains(message_of(zeros({130, 257}), wrong), "[linear_into] expected contiguous memory"));
  }
}
