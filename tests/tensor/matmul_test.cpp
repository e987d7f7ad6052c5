// Matrix products against plain loops in double, over shapes, layouts, dtypes and numbers of threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tensor/bf16_products.h"
#include "tensor/cpu/gemm.h"
#include "tensor/ops.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/tensor/products.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace testing::products;

namespace {

struct Sizes {
  int64_t m, n, k;
};

/// Selects the implementation of bf16 products while it lives.
struct Bf16 {
  Bf16Products before = bf16_products();
  explicit Bf16(Bf16Products products) { set_bf16_products(products); }
  ~Bf16() { set_bf16_products(before); }
};

/// The implementations of bf16 products that this processor supports.
std::vector<Bf16Products> all_bf16_products() {
  std::vector<Bf16Products> all{Bf16Products::portable};
  if (has_bf16_products(Bf16Products::avx512_bf16)) all.push_back(Bf16Products::avx512_bf16);
  return all;
}

}  // namespace

TEST_CASE("matmul: shapes, layouts and dtypes") {
  for (const Sizes r :
       {Sizes{1, 1, 1},  {4, 4, 4},     {1, 7, 5},      {7, 1, 5},     {1, 1, 3000},   {1, 1000, 300}, {1000, 1, 300},
        {33, 17, 45},    {8, 48, 384},  {64, 10, 128},  {10, 64, 64},  {133, 49, 401}, {130, 260, 70}, {400, 31, 100},
        {3, 3, 4099},    {17, 3, 1000}, {129, 17, 129}, {4099, 3, 17}, {17, 4099, 3},  {14, 32, 512},  {15, 33, 513},
        {113, 1537, 20}, {3, 0, 4},     {0, 3, 4},      {3, 4, 0}})
    for (DType dtype : {f32, f64, f16, bf16})
      for (int layout = 0; layout < 4; ++layout) {
        INFO("m ", r.m, ", n ", r.n, ", k ", r.k, ", dtype ", dtype, ", layout ", layout);
        const Tensor a = layout & 1 ? values({r.k, r.m}, 1, dtype).t() : values({r.m, r.k}, 1, dtype);
        const Tensor b = layout & 2 ? values({r.n, r.k}, 2, dtype).t() : values({r.k, r.n}, 2, dtype);
        const Tensor out = matmul(a, b);
        CHECK(out.shape() == Shape{r.m, r.n});
        CHECK(out.dtype() == dtype);
        check_close(out, reference(a, b, 1, r.m, r.n, r.k), tolerance_of(dtype));
      }
}

TEST_CASE("matmul: views with row strides, steps and repeats") {
  const Tensor x = values({40, 60}, 3), y = values({60, 40}, 4);
  const Tensor a = x.slice(1, 5, 45).slice(0, 2, 39, 3);  // (13, 40), with a gap between rows
  const Tensor b = y.slice(0, 0, 40).slice(1, 1, 40, 2);  // (40, 20), without a unit stride
  check_close(matmul(a, b), reference(a, b, 1, 13, 20, 40), 1e-6);
  const Tensor repeated = values({1, 40}, 5).expand({6, 40});
  check_close(matmul(repeated, b), reference(repeated, b, 1, 6, 20, 40), 1e-6);
  const Tensor windows = values({50}, 6).as_strided({11, 40}, {1, 1}, 0);  // overlapping rows
  check_close(matmul(windows, b), reference(windows, b, 1, 11, 20, 40), 1e-6);
}

TEST_CASE("matmul: vectors and batches follow NumPy") {
  struct Row {
    Shape a, b, out;
  };
  const Row rows[] = {{{5}, {5}, {}},
                      {{3, 5}, {5}, {3}},
                      {{5}, {5, 4}, {4}},
                      {{2, 3, 5}, {5}, {2, 3}},
                      {{5}, {2, 5, 4}, {2, 4}},
                      {{2, 3, 5}, {5, 4}, {2, 3, 4}},
                      {{3, 5}, {2, 5, 4}, {2, 3, 4}},
                      {{7, 1, 3, 5}, {2, 5, 4}, {7, 2, 3, 4}},
                      {{2, 1, 3, 5}, {1, 6, 5, 4}, {2, 6, 3, 4}},
                      {{0, 3, 5}, {5, 4}, {0, 3, 4}}};
  for (const Row& r : rows) {
    INFO("a ", r.a, ", b ", r.b);
    const Tensor a = values(r.a, 7), b = values(r.b, 8), out = matmul(a, b);
    REQUIRE(out.shape() == r.out);
    const Tensor left = a.dim() == 1 ? a.unsqueeze(0) : a, right = b.dim() == 1 ? b.unsqueeze(1) : b;
    const int64_t m = left.size(-2), k = left.size(-1), n = right.size(-1);
    if (out.numel() == 0) continue;
    const int64_t batch = out.numel() / (m * n);
    Shape full = r.out;
    if (a.dim() == 1) full.insert(full.rank() - (b.dim() == 1 ? 0 : 1), 1);
    if (b.dim() == 1) full.push_back(1);
    Shape sa = full, sb = full;
    sa[sa.rank() - 1] = k, sb[sb.rank() - 2] = k;
    check_close(out, reference(left.expand(sa).clone(), right.expand(sb).clone(), batch, m, n, k), 1e-6);
  }
}

// Which bits a product has beside others is promised by our kernels for the CPU: cuBLASLt chooses its algorithm by the
// whole shape. On a device the cases "on the CPU" test the CPU again.

TEST_CASE("matmul: the bits do not depend on threads or, on the CPU, on batching") {
  struct Row {
    Shape a, b;
  };
  for (const Row& r : {Row{{1024, 130}, {130, 200}},
                       {{200, 3000}, {3000, 96}},
                       {{64, 700}, {700, 2000}},
                       {{12, 128, 64}, {12, 64, 128}},
                       {{1, 5000}, {5000, 3000}},
                       {{3000, 5000}, {5000}},
                       {{2000, 800}, {800, 2000}}}) {
    CAPTURE(r.a);
    const Tensor a = rand(r.a), b = rand(r.b);
    check_threads([&] { return std::vector{matmul(a, b)}; }, {2, 3, 5});
    if (a.dim() == 3 && default_device().is_cpu()) CHECK(equal(matmul(a, b)[3].clone(), matmul(a[3], b[3])));
  }
}

TEST_CASE("matmul on the CPU: an element has the same bits beside any other rows and columns, and in any layout") {
  const OnCpu on_cpu;
  const Tensor a = rand({1030, 1100}), b = rand({1100, 1600}), entire = matmul(a, b);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2, 2}, {3, 1600}, {1030, 5}, {15, 33}, {512, 1599}}) {
    INFO("rows ", rows, ", columns ", columns);
    const Tensor part = entire.slice(0, 0, rows).slice(1, 0, columns).clone();
    const Tensor left = a.slice(0, 0, rows), right = b.slice(1, 0, columns);
    CHECK(equal(matmul(left, right), part));
    CHECK(equal(matmul(left.t().clone().t(), right.t().clone().t()), part));
  }
  const Tensor small = matmul(a.slice(1, 0, 9), b.slice(0, 0, 9));
  CHECK(equal(matmul(a.slice(0, 4, 8).slice(1, 0, 9), b.slice(0, 0, 9).slice(1, 8, 14)),
              small.slice(0, 4, 8).slice(1, 8, 14).clone()));
}

TEST_CASE("matmul on the CPU: few rows, and few columns, are bit-identical to the same rows of a larger product") {
  const OnCpu on_cpu;
  const auto check = [](const DType dtype) {
    for (const int64_t k : {0, 1, 5, 31, 257, 513, 1031})
      for (const int64_t n : {1, 3, 33, 67}) {
        INFO("dtype ", dtype, ", k ", k, ", n ", n);
        const Tensor a = (rand({40, k}) - full({40, k}, 0.5)).to(dtype),
                     b = (rand({k, n + 40}) - full({k, n + 40}, 0.5)).to(dtype), entire = matmul(a, b);
        const Tensor bias = rand({n}).to(dtype),
                     after = linear(a, b.slice(1, 3, n + 3).t(), bias, Activation::gelu_erf);
        const auto layouts = [](const Tensor& x) { return std::vector<Tensor>{x, x.clone(), x.t().clone().t()}; };
        for (const int64_t rows : {1, 2, 3, 5, 7, 8, 14, 15}) {
          const Tensor part = entire.slice(0, 2, rows + 2).slice(1, 3, n + 3).clone();
          for (const Tensor& left : layouts(a.slice(0, 2, rows + 2)))
            for (const Tensor& right : layouts(b.slice(1, 3, n + 3))) {
              const Threads scope(1 + int(rows % 3));
              REQUIRE(equal(matmul(left, right), part));
              REQUIRE(equal(matmul(right.t(), left.t()), part.t().clone()));
            }
          REQUIRE(equal(linear(a.slice(0, 2, rows + 2), b.slice(1, 3, n + 3).t(), bias, Activation::gelu_erf),
                        after.slice(0, 2, rows + 2).clone()));
        }
      }
  };
  for (const DType dtype : {f32, f64, f16}) check(dtype);
  for (const Bf16Products products : all_bf16_products()) {
    const Bf16 scope(products);
    check(bf16);
  }
}

TEST_CASE("matmul on the CPU: long dot products are bit-identical to those of a larger product") {
  const OnCpu on_cpu;
  for (const DType dtype : {f32, f64, bf16})
    for (const int64_t k : {4096, 5003, 9000}) {
      const Tensor a = rand({20, k}).to(dtype), b = rand({30, k}).to(dtype), entire = matmul(a, b.t());
      for (const auto& [rows, columns] : {std::pair{1, 1}, {2, 3}, {1, 8}, {7, 1}})
        CHECK(equal(matmul(a.slice(0, 3, 3 + rows), b.slice(0, 5, 5 + columns).t()),
                    entire.slice(0, 3, 3 + rows).slice(1, 5, 5 + columns).clone()));
      if (dtype == f32)
        CHECK(equal(addmm(entire.slice(0, 0, 1).slice(1, 0, 1), a.slice(0, 0, 1), b.slice(0, 0, 1).t(), 0.3, 0.7),
                    addmm(entire, a, b.t(), 0.3, 0.7).slice(0, 0, 1).slice(1, 0, 1).clone()));
    }
}

TEST_CASE("matmul on the CPU: few rows, scaled and added, are bit-identical to those of a larger product") {
  const OnCpu on_cpu;
  for (const int64_t k : {3, 40, 600, 1031})
    for (const auto& [beta, alpha] : {std::pair{0.7, 1.3}, {1.0, 0.3}, {-0.3, 1.0}}) {
      const Tensor a = rand({40, k}), b = rand({k, 70}), c = rand({40, 70}), entire = addmm(c, a, b, beta, alpha);
      for (const int64_t rows : {1, 3, 7, 8})
        for (const Tensor& right : {b, b.t().clone().t()}) {
          INFO("k ", k, ", rows ", rows);
          const Tensor some = c.slice(0, 0, rows), left = a.slice(0, 0, rows);
          CHECK(equal(addmm(some, left, right, beta, alpha), entire.slice(0, 0, rows).clone()));
          CHECK(equal(addmm(some.t(), right.t(), left.t(), beta, alpha), entire.slice(0, 0, rows).t().clone()));
          CHECK(equal(addmm(some.slice(1, 0, 2), left, right.slice(1, 0, 2), beta, alpha),
                      entire.slice(0, 0, rows).slice(1, 0, 2).clone()));
        }
    }
}

TEST_CASE("matmul on the CPU: 16-bit operands are computed in f32, and the result is rounded once") {
  const OnCpu on_cpu;
  const Bf16 portable(Bf16Products::portable);
  for (DType dtype : {f16, bf16})
    for (int layout = 0; layout < 4; ++layout) {
      const Tensor a = (layout & 1 ? rand({600, 70}).t() : rand({70, 600})).to(dtype),
                   b = (layout & 2 ? rand({90, 600}).t() : rand({600, 90})).to(dtype);
      CHECK(equal(matmul(a, b), matmul(a.to(f32), b.to(f32)).to(dtype)));
    }
}

TEST_CASE("matmul: by AVX512-BF16, an element is the sum of pairs in order, the second of a pair first") {
  if (!has_bf16_products(Bf16Products::avx512_bf16)) {
    MESSAGE("this processor has no AVX512-BF16: not tested");
    return;
  }
  const OnCpu on_cpu;
  const Bf16 native(Bf16Products::avx512_bf16);
  const auto flushed = [](float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.f, x) : x; };
  for (const Sizes r :
       {Sizes{1, 1, 1}, {3, 5, 7}, {1, 70, 33}, {40, 3, 64}, {20, 45, 1025}, {9, 33, 2051}, {130, 97, 70}})
    for (int layout = 0; layout < 4; ++layout)
      for (const double scale : {1.0, 1e-19}) {  // with the smaller one, products are below the smallest normal f32
        INFO("k ", r.k, ", layout ", layout);
        const auto some = [&](const Shape& shape, bool turned) {
          const Shape lies = turned ? Shape{shape[1], shape[0]} : shape;
          const Tensor x = mul_scalar(rand(lies) - full(lies, 0.5), scale).to(bf16);
          return turned ? x.t() : x;
        };
        const Tensor a = some({r.m, r.k}, layout & 1), b = some({r.k, r.n}, layout & 2), out = matmul(a, b);
        const auto x = a.to(f32).to_vector<float>(), y = b.to(f32).to_vector<float>();
        const int64_t pairs = (r.k + 1) / 2, blocks = (pairs + 511) / 512, depth = (pairs + blocks - 1) / blocks;
        std::vector<float> wanted;
        for (int64_t i = 0; i < r.m; ++i)
          for (int64_t j = 0; j < r.n; ++j) {
            float total = 0;
            for (int64_t first = 0; first < pairs; first += depth) {
              float sum = 0;
              for (int64_t p = first; p < std::min(pairs, first + depth); ++p)
                for (const int64_t q : {2 * p + 1, 2 * p})
                  if (q < r.k) sum = flushed(std::fma(x[size_t(i * r.k + q)], y[size_t(q * r.n + j)], sum));
              total = first == 0 ? sum : total + sum;
            }
            wanted.push_back(total);
          }
        CHECK(equal(out, Tensor::from(wanted, {r.m, r.n}).to(bf16)));
      }
}

TEST_CASE("linear: bf16 with bias and activation is the product in f32, then these, rounded once") {
  for (const Bf16Products products : all_bf16_products()) {
    const Bf16 scope(products);
    for (const auto& [m, n, k] : {std::tuple{1, 40, 70}, {30, 600, 2100}, {200, 1700, 64}, {16, 40, 6000}})
      for (const Activation activation : {Activation::none, Activation::gelu_tanh}) {
        CAPTURE(n);
        const Tensor x = (rand({m, k}) - full({m, k}, 0.5)).to(bf16), w = (rand({n, k}) - full({n, k}, 0.5)).to(bf16),
                     bias = rand({n}).to(bf16), product = add(matmul(x.to(f32), w.to(f32).t()), bias.to(f32));
        Tensor pre;
        const Tensor out = linear(x, w, bias, activation, &pre);
        check_close(pre, product.to_vector<double>(), tolerance_of(bf16));
        check_close(out, (activation == Activation::none ? product : gelu(product, Gelu::tanh)).to_vector<double>(),
                    tolerance_of(bf16));
        for (const int threads : {1, 2, 3}) {
          const Threads some(threads);
          const Tensor again = linear(x, w, bias, activation);
          // cuBLASLt uses another epilogue if pre is requested
          if (default_device().is_cpu()) CHECK(equal(again, out));
          else check_close(again, out.to_vector<double>(), tolerance_of(bf16));
        }
        // products added to c have the same bits, as c is 0
        const Tensor none = zeros({m, n}).to(bf16);
        CHECK(equal(addmm(none, x, w.t(), 1), matmul(x, w.t())));
      }
  }
}

TEST_CASE("gemm: rows apart, scratch or threads, pieces handed over once, beta 0 does not read") {
  const OnCpu on_cpu;
  for (const Sizes r : {Sizes{3, 5, 7}, {16, 16, 16}, {200, 70, 600}, {30, 3100, 40}, {1, 40, 40}, {40, 1, 40}})
    for (const float beta : {0.f, 1.f, -0.5f}) {
      INFO("m ", r.m, ", n ", r.n, ", k ", r.k, ", beta ", beta);
      const int64_t ldc = r.n + 3;
      const Tensor a = values({r.m, r.k}, 1), b = values({r.k, r.n}, 2), start = values({r.m, ldc}, 3);
      auto wanted = reference(a, b, 1, r.m, r.n, r.k);
      Tensor first;
      for (int threads : {0, 1, 2, 3, 4}) {  // 0: one thread, and scratch memory from the caller
        const Threads scope(std::max(threads, 1));
        Tensor out = beta == 0 ? lockstep::full({r.m, ldc}, NAN) : start.clone(), visits = zeros({r.m, r.n}),
               scratch = empty({on_cpu::gemm_scratch<float>(r.m, r.n, r.k) + 1});
        on_cpu::gemm<float, float>(
            r.m, r.n, r.k, 2, {a.data<float>(), r.k, 1}, {b.data<float>(), r.n, 1}, beta, out.data<float>(), ldc,
            [&](int64_t i, int64_t j, int64_t rows, int64_t columns, float*, int64_t) {
              for (int64_t y = i; y < i + rows; ++y)
                for (int64_t x = j; x < j + columns; ++x) visits.data<float>()[y * r.n + x] += 1;
            },
            threads ? nullptr : scratch.data<float>());
        CHECK(equal(visits, ones({r.m, r.n})));
        const Tensor inside = out.slice(1, 0, r.n).clone(), behind = out.slice(1, r.n, ldc).clone();
        if (threads == 0) first = inside;
        CHECK(equal(inside, first));
        CHECK(equal(behind, beta == 0 ? full({r.m, 3}, NAN) : start.slice(1, r.n, ldc).clone()));
      }
      const auto before = start.slice(1, 0, r.n).clone().to_vector<double>();
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = 2 * wanted[i] + (beta == 0 ? 0 : beta * before[i]);
      check_close(first, wanted, 1e-5);
    }
}

TEST_CASE("matmul: NaN and infinity pass, zero depth gives zeros") {
  const float nan = NAN, inf = INFINITY;
  const Tensor a = Tensor::from({0.f, 1.f, nan, 0.f}, {2, 2}), b = Tensor::from({inf, 1.f, 2.f, 3.f}, {2, 2});
  const auto v = matmul(a, b).to_vector<double>();
  CHECK(std::isnan(v[0]));  // 0 * inf
  CHECK(v[1] == 3);
  CHECK(std::isnan(v[2]));
  CHECK(equal(matmul(zeros({2, 0}), zeros({0, 3})), zeros({2, 3})));
  // packed for the kernel; NaN and infinity still only affect their row and column
  Tensor x = ones({60, 600}), y = ones({600, 70});
  x[17][550].fill_(nan), y[599][69].fill_(inf);
  const auto w = matmul(x, y).to_vector<double>();
  for (size_t i = 0; i < 60; ++i)
    for (size_t j = 0; j < 70; ++j)
      CHECK((i == 17 ? std::isnan(w[i * 70 + j]) : w[i * 70 + j] == (j == 69 ? inf : 600)));
}

TEST_CASE("addmm: alpha, beta, broadcasting, and beta 0 ignores c") {
  for (const auto& [m, n, k] : {std::tuple{3, 4, 5}, {1, 200, 64}, {200, 1, 64}, {130, 70, 300}, {2, 3, 0}})
    for (const Shape& shape : {Shape{m, n}, Shape{n}, Shape{m, 1}, Shape{}}) {
      const Tensor c = values(shape, 1), a = values({m, k}, 2), b = values({k, n}, 3);
      auto wanted = reference(a, b, 1, m, n, k);
      const auto shift = c.expand({m, n}).to_vector<double>();
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = 2 * shift[i] - 0.5 * wanted[i];
      check_close(addmm(c, a, b, 2, -0.5), wanted, 1e-5);
    }
  const Tensor nans = full({2, 2}, NAN);
  CHECK(addmm(nans, ones({2, 3}), ones({3, 2}), 0).to_vector<double>() == std::vector<double>(4, 3));
}

TEST_CASE("matmul_unary_grad is bit-identical to the product and then the derivative") {
  const Sizes sizes[] = {{0, 5, 3},    {4, 0, 3},  {3, 5, 0},    {1, 1, 1},    {2, 3, 4},     {1, 97, 300},
                         {131, 1, 37}, {6, 16, 8}, {7, 31, 600}, {65, 33, 64}, {61, 1600, 17}};
  for (const auto& [m, n, k] : sizes)
    for (const DType dtype : {f32, f64, bf16})
      for (const bool turned : {false, true}) {
        INFO("m ", m, ", n ", n, ", k ", k, ", turned ", turned);
        const auto made = [&](int64_t rows, int64_t columns, uint32_t seed) {
          return turned ? values({columns, rows}, seed, dtype).t() : values({rows, columns}, seed, dtype);
        };
        const Tensor a = made(m, k, 1), b = made(k, n, 2), kept = made(m, n, 3);
        for (const PointwiseOp op :
             {PointwiseOp::relu, PointwiseOp::gelu_tanh, PointwiseOp::gelu_erf, PointwiseOp::silu, PointwiseOp::tanh}) {
          const Tensor expected = pointwise_grad(op, PointwisePart::grad0, {}, matmul(a, b), kept, {});
          // cuBLASLt computes GELU in its own way, and rounds to 16 bits once where two operations round twice
          const bool exact = default_device().is_cpu() || op != PointwiseOp::gelu_tanh;
          const auto check = [&](const Tensor& got) {
            if (exact) CHECK(equal(got, expected));
            else check_close(got, expected.to_vector<double>(), tolerance_of(dtype));
          };
          check(matmul_unary_grad(a, b, op, {}, kept));
          const Threads three(3);
          check(matmul_unary_grad(a, b, op, {}, kept));
        }
      }
  CHECK_ERROR(matmul_unary_grad(ones({2, 3}), ones({4, 5}), PointwiseOp::relu, {}, ones({2, 5})),
              "expected the inner sizes to agree");
}

TEST_CASE("matrix products: Errors name the wrong argument") {
  const Tensor a = zeros({3, 4}), b = zeros({5, 6}), yes = ones({4, 4}, {.dtype = boolean}),
               entire = zeros({4, 4}, {.dtype = i64});
  CHECK_ERROR(matmul(a, b), "[matmul] expected the inner sizes to agree, got (3, 4) and (5, 6)");
  CHECK_ERROR(matmul(yes, yes), "[matmul] expected a floating dtype, got bool");
  CHECK_ERROR(linear(entire, entire), "[linear] expected a floating dtype, got i64");
  CHECK_ERROR(matmul(a, zeros({4, 4}, {.dtype = f64})), "[matmul] expected one dtype, got f32 and f64");
  CHECK_ERROR(matmul(a, zeros({})), "[matmul] expected at least 1 dim");
  CHECK_ERROR(matmul(zeros({2, 3, 4}), zeros({3, 4, 5})), "[matmul] expected");
  CHECK_ERROR(matmul(Tensor(), a), "[matmul] tensor is undefined");
  CHECK_ERROR(addmm(zeros({7}), a, zeros({4, 2})), "[addmm] expected");
  CHECK_ERROR(linear(a, b), "[linear] expected an input (..., 6) for weight (5, 6), got (3, 4)");
  CHECK_ERROR(linear(zeros({3, 6}), b, zeros({6})), "[linear] expected a bias (5), got (6)");
  CHECK_ERROR(outer(a, a), "[outer] expected two vectors");
}
