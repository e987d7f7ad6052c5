// 8-bit floats on the device: codes equal the CPU's bit for bit; products are close to exact, with cuBLASLt and
// without.
#include "extensions/fp8/kernels.h"
#include "extensions/fp8/matrix.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/limit_cases.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using namespace testing;

namespace {

/// Encodes x. The address of the result's inverse scale is an odd multiple of 4 bytes.
Fp8Matrix matrix(const Tensor& x, Fp8Format format, double scale) {
  const auto one = [&](double value) { return full({2}, value, {.device = x.device()}).narrow(0, 1, 1); };
  return {cast_fp8(x, {.format = format, .scale = one(scale)}).codes, format, one(1 / scale)};
}

/// The largest difference, divided by the largest element.
double apart(const Tensor& got, const Tensor& expected) {
  const Tensor wide = expected.to(f64);
  return max(abs(got.to(cpu).to(f64) - wide)).item() / max(abs(wide)).item();
}

std::vector<LimitCase> limits_of_fp8() {
  using T = Tensors;
  std::vector<LimitCase> cases;
  for (const bool turned : {false, true})
    cases.push_back(
        {.name = turned ? "codes of fp8, turned" : "codes of fp8",
         .inputs = {{{64}, bf16}},
         .run =
             [turned](T in) {
               const Fp8Cast made = cast_fp8(
                   in[0], {.scale = full({1}, 3, {.device = in[0].device()}), .straight = !turned, .turned = turned});
               return T{turned ? made.turned.t() : made.codes};
             },
         .bound = 0});
  cases.push_back({.name = "numbers of fp8",
                   .inputs = {{{1000}, u8}},
                   .run = [](T in) { return T{read_fp8(in[0], Fp8Format::e5m2, bf16)}; },
                   .bound = 0});
  return cases;
}
[[maybe_unused]] const bool added = (more_limit_cases().push_back(limits_of_fp8), true);

}  // namespace

TEST_CASE("cuda fp8: codes, their transpose and the largest number") {
  for (const Shape& shape : {Shape{1, 1}, {64, 64}, {3, 200}, {128, 68}, {129, 67}, {700, 16}}) {
    for (const DType dtype : {f32, f16, bf16}) {
      for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
        for (const int made : {1, 2, 3}) {
          const std::string what = str("cast_fp8 ", shape, " ", dtype, " ", name_of(format), " ", made);
          Tensor x = random_tensor(shape, dtype, 3, 300);
          if (x.numel() > 5) {
            const Tensor flat = x.view({x.numel()});
            flat[3].fill_(-NAN), flat[4].fill_(-INFINITY), flat[5].fill_(1e-6);
          }
          const Tensor none, codes = zeros(shape, {.dtype = u8, .device = cpu}),
                             turned = zeros({shape[1], shape[0]}, {.dtype = u8, .device = cpu});
          against_cpu(
              what, {x, full({1}, 1.7, {.device = cpu})},
              {made & 1 ? codes : none, made & 2 ? turned : none, zeros({1}, {.device = cpu})},
              [&](Device on, const Arguments& in, Arguments& out) {
                out[2].fill_(20);
                kernels::cast_fp8(on, in[0], format, in[1], out[2], out[0], out[1]);
              },
              0);
        }
      }
    }
  }
}

TEST_CASE("cuda fp8: all numbers") {
  const Tensor codes = arange(0, 256, 1, {i64, cpu}).to(u8);
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2})
    for (const DType dtype : {f32, bf16})
      against_cpu(
          str("read_fp8 ", name_of(format), " ", dtype), {codes}, {zeros({256}, {.dtype = dtype, .device = cpu})},
          [&](Device on, const Arguments& in, Arguments& out) { kernels::read_fp8(on, in[0], format, out[0]); }, 0);
}

TEST_CASE("cuda fp8: products, with and without cuBLASLt's") {
  struct Row {
    int64_t m, n, k;
    Fp8Format a, b;
    bool by_library;
  };
  using enum Fp8Format;
  const Row rows[] = {
      {16, 16, 16, e4m3, e4m3, true},  {48, 32, 80, e4m3, e4m3, true},  {32, 64, 48, e5m2, e4m3, true},
      {32, 64, 48, e4m3, e5m2, true},  {32, 64, 48, e5m2, e5m2, false}, {33, 64, 48, e4m3, e4m3, false},
      {32, 24, 48, e4m3, e4m3, false}, {32, 64, 40, e4m3, e4m3, false}, {128, 96, 160, e5m2, e4m3, true}};
  [[maybe_unused]] double max_error = 0;  // the error of the simulated library's f32 results
  for (const Row& r : rows) {
    for (const DType dtype : {f32, f16, bf16}) {
      for (const bool with_bias : {false, true}) {
        const Tensor a = random_tensor({r.m, r.k}, f32, 1), b = random_tensor({r.n, r.k}, f32, 2),
                     bias = with_bias ? random_tensor({r.n}, dtype, 3) : Tensor();
        CAPTURE(str(r.m, " ", r.n, " ", r.k, " ", name_of(r.a), " ", name_of(r.b), " ", dtype, " ", with_bias));
        const Tensor here = matmul_fp8(matrix(a, r.a, 100), matrix(b, r.b, 30), bias, dtype);
        const Fp8Matrix a8 = matrix(a.to(cuda0), r.a, 100), b8 = matrix(b.to(cuda0), r.b, 30);
        for (int again = 0; again < 2; ++again) {
#if defined(SIMT_CPU)
          synchronize(cuda0);
          fake::take_launches();
#endif
          const Tensor there = matmul_fp8(a8, b8, with_bias ? bias.to(cuda0) : bias, dtype);
          CHECK(apart(there, here) <= tolerance(Near::product_fp8, dtype));
#if defined(SIMT_CPU)
          max_error = std::max(max_error, dtype == f32 ? apart(there, here) : 0);
          CHECK((fake::take_launches().count("read_fp8") == 0) == r.by_library);
#endif
        }
        // The product of the decoded values in f64; results may differ by the error of an f32 sum and the final
        // rounding.
        const auto read = [](const Fp8Matrix& m) { return mul(read_fp8(m.codes, m.format), m.scale_inv).to(f64); };
        Tensor exact = matmul(read(matrix(a, r.a, 100)), read(matrix(b, r.b, 30)).t());
        if (with_bias) exact = add(exact, bias.to(f64));
        check_close(here, exact, tolerance(dtype), "matmul_fp8 of the CPU");
      }
    }
  }
#if defined(SIMT_CPU)
  CHECK(max_error > 1e-5);  // the simulated library sums in few bits, as Hopper does
#endif
}

#if defined(SIMT_CPU)
TEST_CASE("cuda fp8: where cuBLASLt refuses what its heuristic proposed, the next algorithm computes the product") {
  const Tensor a = random_tensor({32, 48}, f32, 1), b = random_tensor({64, 48}, f32, 2);
  const Tensor here = matmul_fp8(matrix(a, Fp8Format::e4m3, 100), matrix(b, Fp8Format::e5m2, 30));
  const Fp8Matrix a8 = matrix(a.to(cuda0), Fp8Format::e4m3, 100), b8 = matrix(b.to(cuda0), Fp8Format::e5m2, 30);
  for (const int64_t refused : {1, 2, 100}) {
    CAPTURE(refused);
    synchronize(cuda0);
    fake::take_launches();
    fake::refused_algorithms = refused;
    const Tensor there = matmul_fp8(a8, b8);
    fake::refused_algorithms = 0;
    CHECK((fake::take_launches().count("read_fp8") == 0) == (refused < 100));  // else in bf16, as on older devices
    CHECK(apart(there, here) <= tolerance(Near::product_fp8, bf16));
  }
}
#endif
