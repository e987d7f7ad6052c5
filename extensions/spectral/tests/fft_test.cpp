// Fourier transforms compared with the defining sum, and complex tensors, which exist on the CPU only.
#include "extensions/spectral/fft.h"

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <functional>
#include <numbers>

#include "extensions/operations/operations.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

using Number = std::complex<double>;

Tensor random_numbers(const Shape& shape, DType dtype) {
  Shape pairs = shape;
  pairs.push_back(2);
  return view_as_complex(randn(pairs, {.dtype = f64, .device = cpu})).to(dtype);
}

/// The defining sum, for rows of the last dimension.
std::vector<Number> naive(const Tensor& x, bool inverse) {
  const auto in = x.to_vector<Number>();
  const int64_t n = x.size(-1);
  std::vector<Number> roots, out(in.size());
  for (int64_t k = 0; k < n; ++k)
    roots.push_back(std::polar(1.0, (inverse ? 2 : -2) * std::numbers::pi * double(k) / double(n)));
  for (size_t row = 0; row < in.size(); row += size_t(n))
    for (int64_t k = 0; k < n; ++k)
      for (int64_t j = 0; j < n; ++j) out[row + size_t(k)] += in[row + size_t(j)] * roots[size_t(j * k % n)];
  return out;
}

/// The largest difference relative to the root mean square of the expected values.
double error_of(const Tensor& got, const std::vector<Number>& expected) {
  const auto values = got.to_vector<Number>();
  REQUIRE(values.size() == expected.size());
  double max_error = 0, squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    max_error = std::max(max_error, std::abs(values[i] - expected[i]));
    squares += std::norm(expected[i]);
  }
  return squares > 0 ? max_error / std::sqrt(squares / double(values.size())) : max_error;
}

std::vector<int64_t> lengths() {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= 200; ++n) all.push_back(n);
  for (int64_t n : {211, 256, 257, 289, 499, 500, 509, 512, 997, 1000, 1009, 1024, 1155, 2018, 2048, 4099})
    all.push_back(n);
  return all;
}

}  // namespace

TEST_CASE_FIXTURE(OnCpu, "fft: every length agrees with the definition, comes back, and keeps the energy") {
  for (const DType dtype : {c128, c64}) {
    const double within = dtype == c128 ? 2e-13 : 3e-5;
    for (const int64_t n : lengths()) {
      CAPTURE(n);
      CAPTURE(dtype);
      const int64_t rows = n < 200 ? n % 19 + 1 : 2;
      const Tensor x = random_numbers({rows, n}, dtype), y = fft::fft(x);
      CHECK(error_of(y, naive(x, false)) < within);
      CHECK(error_of(fft::ifft(x, {}, -1, fft::FftNorm::forward), naive(x, true)) < within);
      CHECK(error_of(fft::ifft(y), x.to_vector<Number>()) < within);
      const double energy = sum(square(abs(x))).item(), of_spectrum = sum(square(abs(y))).item() / double(n);
      CHECK(of_spectrum == doctest::Approx(energy).epsilon(dtype == c128 ? 1e-12 : 1e-5));

      const Tensor r = real(x).contiguous(), half = fft::rfft(r);
      CHECK(half.shape() == Shape{rows, n / 2 + 1});
      CHECK(half.dtype() == dtype);
      const Tensor entire = fft::fft(r);
      CHECK(error_of(half, entire.narrow(1, 0, n / 2 + 1).to_vector<Number>()) < within);
      CHECK(error_of(fft::irfft(half, n), r.to_vector<Number>()) < within);
      CHECK(error_of(fft::hfft(fft::ihfft(r), n), r.to_vector<Number>()) < within);
    }
  }
}

TEST_CASE_FIXTURE(OnCpu, "fft: long rows, of both kinds, against the sum at a few places") {
  for (const int64_t n : {int64_t(1) << 16, int64_t(10007), int64_t(3) * 5 * 7 * 11 * 13 * 2, int64_t(2) * 8209}) {
    CAPTURE(n);
    const Tensor x = random_numbers({n}, c128), y = fft::fft(x);
    const auto in = x.to_vector<Number>(), out = y.to_vector<Number>();
    for (const int64_t k : {int64_t(0), int64_t(1), n / 3, n - 1}) {
      Number expected = 0;
      for (int64_t j = 0; j < n; ++j)
        expected += in[size_t(j)] * std::polar(1.0, -2 * std::numbers::pi * double(j * k % n) / double(n));
      CHECK(std::abs(out[size_t(k)] - expected) < 1e-10 * std::sqrt(double(n)));
    }
    CHECK(error_of(fft::ifft(y), in) < 1e-12);
    CHECK(error_of(fft::irfft(fft::rfft(real(x)), n), real(x).to_vector<Number>()) < 1e-12);
    CHECK(error_of(fft::fft(x.to(c64)), out) < 3e-5);
  }
}

TEST_CASE_FIXTURE(OnCpu, "fft: the bits do not depend on threads") {
  for (const int64_t n : {60, 1009, 1024, 10007, 1 << 17})
    for (const int64_t rows : {1, 37}) {
      if (n * rows > 1 << 20) continue;
      const Tensor x = random_numbers({rows, n}, c64), r = real(x).contiguous();
      check_threads([&] { return std::vector{fft::fft(x), fft::ifft(x), fft::rfft(r), fft::irfft(x, n)}; });
    }
}

TEST_CASE_FIXTURE(OnCpu, "fft: dims, sizes, normalisation and shifts") {
  const Tensor x = random_numbers({3, 4, 5}, c128);
  CHECK(allclose(fft::fft(x, {}, 1), fft::fft(x.transpose(1, 2)).transpose(1, 2), 1e-12, 1e-12));
  CHECK(allclose(fft::fft(x.permute({2, 0, 1}), {}, 0), fft::fft(x).permute({2, 0, 1}), 1e-12, 1e-12));
  CHECK(allclose(fft::fft2(x), fft::fft(fft::fft(x, {}, 1), {}, 2), 1e-12, 1e-12));
  CHECK(allclose(fft::fftn(x), fft::fft(fft::fft2(x), {}, 0), 1e-12, 1e-12));
  CHECK(allclose(fft::fftn(x, {2, 7}), fft::fft2(x, {2, 7}), 1e-12, 1e-12));
  CHECK(allclose(fft::fft(x, 3), fft::fft(x.narrow(2, 0, 3)), 1e-12, 1e-12));
  CHECK(allclose(fft::fft(x, 8), fft::fft(pad(x, {0, 3})), 1e-12, 1e-12));
  CHECK(allclose(fft::ifftn(fft::fftn(x, {}, {}, fft::FftNorm::ortho), {}, {}, fft::FftNorm::ortho), x, 1e-12, 1e-12));
  CHECK(allclose(mul_scalar(fft::fft(x, {}, -1, fft::FftNorm::forward), 5), fft::fft(x), 1e-12, 1e-12));
  const Tensor r = real(x);
  CHECK(allclose(fft::rfftn(r), fft::fftn(r).narrow(2, 0, 3), 1e-12, 1e-12));
  CHECK(allclose(fft::irfftn(fft::rfftn(r), {3, 4, 5}), r, 1e-12, 1e-12));
  CHECK(allclose(fft::irfft2(fft::rfft2(r), {4, 5}), r, 1e-12, 1e-12));
  CHECK(fft::fft(zeros({0, 4})).shape() == Shape{0, 4});
  CHECK(fft::rfft(zeros({0, 4})).shape() == Shape{0, 3});
  CHECK(equal(fft::fftfreq(5, 0.5), Tensor::from<float>({0, 0.4f, 0.8f, -0.8f, -0.4f})));
  CHECK(equal(fft::fftfreq(4), Tensor::from<float>({0, 0.25f, -0.5f, -0.25f})));
  CHECK(equal(fft::rfftfreq(5), Tensor::from<float>({0, 0.2f, 0.4f})));
  CHECK(equal(fft::fftshift(arange(5)), Tensor::from<int64_t>({3, 4, 0, 1, 2})));
  for (const int64_t n : {1, 4, 5})
    CHECK(equal(fft::ifftshift(fft::fftshift(arange(n * 6).reshape({n, 6}))), arange(n * 6).reshape({n, 6})));
}

TEST_CASE_FIXTURE(OnCpu, "fft: invalid arguments are rejected") {
  const Tensor x = zeros({3, 4}), z = x.to(c64);
  CHECK_ERROR_IS(fft::fft(x, 0),
                 "[fft] expected a length of at least 1 in dim -1, got 0 for shape (3, 4); set n (or s) to at least 1");
  CHECK_ERROR(fft::fft(zeros({3, 0})), "got 0");
  CHECK_ERROR(fft::irfft(zeros({3, 1})), "got 0");
  CHECK_ERROR(fft::fft(full({}, 1)), "at least one dim");
  CHECK_ERROR_IS(fft::rfft(z), "[rfft] expected f32 or f64, got c64; use fft() or fftn(), or pass real(x)");
  CHECK_ERROR(fft::fft(x.to(f16)), "expected f32, f64, c64 or c128, got f16");
  CHECK_ERROR(fft::fft(x, {}, 2), "[fft]");
  CHECK_ERROR(fft::fft2(x, {}, {0, -2}), "every dim once");
  CHECK_ERROR(fft::fftn(x, {2, 2, 2}), "at most 2 sizes");
  CHECK_ERROR(fft::fft2(x, {2}), "one size for each");
  CHECK_ERROR(fft::fftfreq(0), "n >= 1");
}

TEST_CASE_FIXTURE(OnCpu, "complex: creation, views, copies and printing") {
  for (const DType dtype : {c64, c128}) {
    const Tensor x = random_numbers({3, 4}, dtype);
    CHECK(size_of(dtype) == 2 * size_of(real_dtype(dtype)));
    CHECK(parse_dtype(name_of(dtype)) == dtype);
    CHECK(sum(abs(zeros({3}, {.dtype = dtype}))).item() == 0);
    CHECK(equal(real(ones({3}, {.dtype = dtype})), ones({3}, {.dtype = real_dtype(dtype)})));
    CHECK(full({2}, Number(1, -2), {.dtype = dtype}).to_vector<Number>()[1] == Number(1, -2));
    CHECK(equal(x.to(c128).to(dtype), x));
    CHECK(equal(real(x.t()), real(x).t()));
    CHECK(equal(complex(real(x), imag(x)), x));
    CHECK(equal(view_as_complex(view_as_real(x)), x));
    CHECK(view_as_real(x).storage() == x.storage());
    CHECK(equal(x.t().clone().t(), x));
    CHECK(equal(real(arange(3).to(dtype)), arange(3).to(real_dtype(dtype))));
    CHECK(x[1][2].item<Number>() == x.to_vector<Number>()[6]);
    // Operations that move elements move both parts.
    const Tensor re = real(x), index = Tensor::from<int64_t>({2, 0});
    const auto moves = [&](const std::function<Tensor(const Tensor&)>& f) {
      const Tensor out = f(x);
      CHECK(equal(real(out), f(re)));
      CHECK(equal(imag(out), f(imag(x))));
    };
    moves([](const Tensor& t) { return cat({t, t}, 1); });
    moves([](const Tensor& t) { return stack({t, t}, 1); });
    moves([](const Tensor& t) { return t.permute({1, 0}).reshape({2, 6}); });
    moves([&](const Tensor& t) { return index_select(t, 0, index); });
    moves([&](const Tensor& t) { return gather(t, 0, index.reshape({1, 2})); });
    moves([](const Tensor& t) { return flip(t, {0, 1}); });
    moves([](const Tensor& t) { return roll(t, {1}, {1}); });
    moves([](const Tensor& t) { return repeat(t, {2, 1}); });
    moves([](const Tensor& t) { return tril(t); });
    moves([](const Tensor& t) { return pad(t, {1, 2}); });
    moves([](const Tensor& t) { return sum(t, {0}); });
    moves([](const Tensor& t) { return sum(t); });
    moves([](const Tensor& t) { return neg(t); });
    moves([](const Tensor& t) { return where(Tensor::from<float>({1, 0, 0, 1}).to(boolean), t, neg(t)); });
  }
  const Tensor x = Tensor::from<std::complex<float>>({{1, 2}, {-3.5f, -1}});
  CHECK(to_string(x) == "[ 1.0+2.j, -3.5-1.j], dtype=c64");
  CHECK(to_string(zeros({0}, {.dtype = c128})) == "[], dtype=c128");
}

TEST_CASE_FIXTURE(OnCpu, "complex: arithmetic agrees with std::complex") {
  const Tensor a = random_numbers({3, 1, 5}, c128), b = random_numbers({4, 5}, c128), r = randn({4, 5}, {.dtype = f64});
  const auto each = [&](const Tensor& left, const Tensor& right, const Tensor& got, auto fn) {
    const Shape shape = broadcast_shapes("test", left.shape(), right.shape());
    const auto p = left.expand(shape).to_vector<Number>(), q = right.expand(shape).to_vector<Number>();
    std::vector<Number> expected;
    for (size_t i = 0; i < p.size(); ++i) expected.push_back(fn(p[i], q[i]));
    CHECK(got.shape() == shape);
    CHECK(error_of(got, expected) < 1e-13);
  };
  for (const Tensor& other : {b, r}) {
    each(a, other, a + other, [](Number x, Number y) { return x + y; });
    each(other, a, other - a, [](Number x, Number y) { return x - y; });
    each(a, other, a * other, [](Number x, Number y) { return x * y; });
    each(a, other, a / other, [](Number x, Number y) { return x / y; });
    each(other, a, other / a, [](Number x, Number y) { return x / y; });
  }
  each(a, a, a * 2.0 + 1.0, [](Number x, Number) { return x * 2.0 + 1.0; });
  each(a, a, 1.0 / a, [](Number x, Number) { return 1.0 / x; });
  each(a, a, conj(a), [](Number x, Number) { return std::conj(x); });
  each(a, a, abs(a), [](Number x, Number) { return std::abs(x); });
  each(a, a, angle(a), [](Number x, Number) { return std::arg(x); });
  each(a, a, polar(abs(a), angle(a)), [](Number x, Number) { return x; });
  const Tensor c = a.clone();
  add_(c, b[0]), sub_(c, a), mul_(c, a);
  each(a, b[0], c, [](Number x, Number y) { return y * x; });
  // Absolute values whose squares would overflow or underflow.
  const Tensor far = Tensor::from<std::complex<float>>({{3e30f, 4e30f}, {3e-30f, 4e-30f}, {0, 0}});
  const auto lengths = abs(far).to_vector<float>();
  CHECK(lengths[0] == doctest::Approx(5e30));
  CHECK(lengths[1] / 5e-30f == doctest::Approx(1));
  CHECK(lengths[2] == 0);
  CHECK(allclose(div(far, far).narrow(0, 0, 2), ones({2}, {.dtype = c64})));
}

TEST_CASE_FIXTURE(OnCpu, "complex: operations without a complex version raise an Error") {
  const Tensor z = ones({2, 2}, {.dtype = c64}), mask = ones({2, 2}, {.dtype = boolean});
  CHECK_ERROR(exp(z), "c64");
  CHECK_ERROR(maximum(z, z), "c64");
  CHECK_ERROR(lt(z, z), "c64");
  CHECK_ERROR(eq(z, z), "c64");
  CHECK_ERROR(pow_scalar(z, 2), "c64");
  CHECK_ERROR(relu_(z), "c64");
  CHECK_ERROR(prod(z), "c64");
  CHECK_ERROR(mean(z), "c64");
  CHECK_ERROR(amax(z), "c64");
  CHECK_ERROR(max(z, 0), "c64");
  CHECK_ERROR(cumsum(z, 0), "c64");
  CHECK_ERROR(sort(z), "c64");
  CHECK_ERROR(topk(z, 1), "c64");
  CHECK_ERROR(matmul(z, z), "c64");
  CHECK_ERROR(softmax(z, 0), "c64");
  CHECK_ERROR(masked_fill(z, mask, 0), "c64");
  CHECK_ERROR(scatter_add(z, 0, zeros({2, 2}, {.dtype = i64}), z), "c64");
  CHECK_ERROR(index_add_(z, 0, arange(2), z), "c64");
  CHECK_ERROR(addcmul(z, z, z), "c64");
  CHECK_ERROR(lerp(z, z, 0.5), "c64");
  CHECK_ERROR(isnan(z), "c64");
  CHECK_ERROR(any(z), "c64");
  CHECK_ERROR(norm(z), "c64");
  CHECK_ERROR(var(z), "c64");
  CHECK_ERROR(randn({2}, {.dtype = c64}), "c64");
  CHECK_ERROR(arange(0, 2, 1, {.dtype = c64}), "c64");
  CHECK_ERROR(linspace(0, 2, 3, {.dtype = c64}), "c64");
  CHECK_ERROR(randint(0, 2, {2}, {.dtype = c64}), "c64");
  CHECK_ERROR(add(z, ones({2, 2}, {.dtype = f64})), "c64");
  CHECK_ERROR(add(z, ones({2, 2}, {.dtype = i64})), "c64");
  CHECK_ERROR(z.to(f32), "c64");
  CHECK_ERROR(ones({2, 2}).copy_(z), "c64");
  CHECK_ERROR(z[0][0].item(), "c64");
  CHECK_ERROR(z.to_vector<float>(), "c64");
  CHECK_ERROR(add_(ones({2, 2}), z), "c64");
  CHECK_ERROR(view_as_complex(zeros({2, 3})), "a last dim of size 2");
  CHECK_ERROR(view_as_complex(zeros({2, 2}).t()), "stride 1");
  CHECK_ERROR(view_as_complex(zeros({6}).as_strided({2, 2}, {3, 1}, 0)), "even strides");
  CHECK_ERROR(view_as_complex(zeros({5}).narrow(0, 1, 4).reshape({2, 2})), "an even offset");
  CHECK_ERROR(view_as_real(zeros({2})), "expected a complex dtype");
  CHECK_ERROR(imag(zeros({2})), "expected a complex dtype");
  CHECK_ERROR(complex(zeros({2}), zeros({2}, {.dtype = f64})), "f32 and f64");
}
