// Gradients through complex numbers, which exist on the CPU only, and Fourier transforms.
#include "extensions/spectral/fft.h"

#include <doctest/doctest.h>

#include <complex>
#include <functional>

#include "autograd/gradcheck.h"
#include "tests/devices.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

using Number = std::complex<double>;

Variable pairs_leaf(const Shape& shape) {
  Shape pairs = shape;
  pairs.push_back(2);
  return Variable(randn(pairs, {.dtype = f64}), true);
}
Variable real_leaf(const Shape& shape) { return Variable(randn(shape, {.dtype = f64}), true); }
Variable parts(const Variable& x) { return is_complex(x.dtype()) ? view_as_real(x) : x; }

using Fn = std::function<Variable(const std::vector<Variable>&)>;
struct Row {
  const char* name;
  std::vector<Variable> inputs;
  Fn fn;
};

/// Checks first and second derivatives of each row. A complex result counts as its real and imaginary parts.
void check_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Fn fn = [&](const std::vector<Variable>& in) { return parts(row.fn(in)); };
    CHECK(gradcheck(fn, row.inputs) == "");
    CHECK(gradgradcheck(fn, row.inputs) == "");
  }
}

}  // namespace

TEST_CASE_FIXTURE(OnCpu, "complex: derivatives, first and second") {
  const auto z = [](const Variable& x) { return view_as_complex(x); };
  check_rows({
      {"add", {pairs_leaf({3, 1}), pairs_leaf({2})}, [&](auto& in) { return z(in[0]) + z(in[1]); }},
      {"sub real", {pairs_leaf({3}), real_leaf({2, 3})}, [&](auto& in) { return in[1] - z(in[0]); }},
      {"mul", {pairs_leaf({3, 1}), pairs_leaf({2})}, [&](auto& in) { return z(in[0]) * z(in[1]); }},
      {"mul real", {pairs_leaf({3}), real_leaf({3})}, [&](auto& in) { return in[1] * z(in[0]); }},
      {"div", {pairs_leaf({3, 1}), pairs_leaf({2})}, [&](auto& in) { return z(in[0]) / z(in[1]); }},
      {"div real", {pairs_leaf({3}), real_leaf({3})}, [&](auto& in) { return z(in[0]) / in[1]; }},
      {"reciprocal", {pairs_leaf({3})}, [&](auto& in) { return 1.0 / z(in[0]); }},
      {"square", {pairs_leaf({3})}, [&](auto& in) { return square(z(in[0])); }},
      {"scalars", {pairs_leaf({3})}, [&](auto& in) { return 1.0 - z(in[0]) * 2.0 + 3.0; }},
      {"abs", {pairs_leaf({3})}, [&](auto& in) { return abs(z(in[0])); }},
      {"angle", {pairs_leaf({3})}, [&](auto& in) { return angle(z(in[0])); }},
      {"conj", {pairs_leaf({3})}, [&](auto& in) { return conj(z(in[0])); }},
      {"real imag", {pairs_leaf({3})}, [&](auto& in) { return mul(real(z(in[0])), imag(z(in[0]))); }},
      {"complex", {real_leaf({3, 1}), real_leaf({2})}, [](auto& in) { return complex(in[0], in[1]); }},
      {"polar", {real_leaf({3}), real_leaf({3})}, [](auto& in) { return polar(in[0], in[1]); }},
      {"sum", {pairs_leaf({3, 2})}, [&](auto& in) { return square(sum(z(in[0]), {0})); }},
      {"where",
       {pairs_leaf({3})},
       [&](auto& in) {
         return where(Tensor::from<float>({1, 0, 1}).to(boolean), z(in[0]), square(z(in[0])));
       }},
      {"views",
       {pairs_leaf({3, 2})},
       [&](auto& in) {
         const Variable x = z(in[0]);
         return cat(std::vector<Variable>{x.t().reshape({6}), stack(std::vector<Variable>{x[0], x[1]}, 1)[0]}, 0);
       }},
      {"used often",
       {pairs_leaf({3})},
       [&](auto& in) {
         const Variable x = z(in[0]);
         return x * x + x.narrow(0, 0, 1) + x.expand({2, 3})[0];
       }},
      {"from real", {real_leaf({3})}, [](auto& in) { return square(in[0].to(c128)); }},
  });
  // The direction of 0 is undefined; its gradient is 0.
  const Variable zero(zeros({2}, {.dtype = c128}), true);
  sum(abs(zero) + angle(zero)).backward();
  CHECK(equal(zero.grad(), zeros({2}, {.dtype = c128})));
}

TEST_CASE_FIXTURE(OnCpu, "complex: gradients match PyTorch") {
  const Variable x(Tensor::from<Number>({{1, 2}, {-3, 0.5}}), true);
  sum(square(abs(x))).backward();  // d |z|^2 = 2 z
  CHECK(allclose(x.grad(), x.tensor() * 2.0));
  sum(square(abs(x))).backward();
  CHECK(allclose(x.grad(), x.tensor() * 4.0));
  const Variable y(Tensor::from<Number>({{1, 2}, {-3, 0.5}}), true), w(Tensor::from<Number>({{2, -1}}), true);
  sum(real(y * w)).backward();  // a gradient is the conjugate of the other factor, summed over broadcast dims
  CHECK(allclose(y.grad(), conj(w.tensor()).expand({2})));
  CHECK(allclose(w.grad(), sum(conj(y.tensor()), {0}, true)));
  // The gradient of a holomorphic function f is conj(f').
  const Variable v(Tensor::from<Number>({{1, 2}}), true);
  square(v).backward(Tensor::from<Number>({{1, 0}}));
  CHECK(v.grad().item<Number>() == Number(2, -4));
  CHECK_ERROR(sum(v).backward(), "only a real result may omit it");
  CHECK_ERROR(Variable(ones({2}, {.dtype = i64}), true), "floating or complex dtype, got i64");
  Variable kept = v * v;
  CHECK_ERROR(add_(kept, v), "use the out-of-place operation");
}

TEST_CASE_FIXTURE(OnCpu, "fft: derivatives, first and second") {
  const auto z = [](const Variable& x) { return view_as_complex(x); };
  using fft::FftNorm;
  for (const int64_t n : {1, 2, 5, 6}) {
    CAPTURE(n);
    check_rows({
        {"fft", {pairs_leaf({2, n})}, [&](auto& in) { return fft::fft(z(in[0])); }},
        {"fft of real", {real_leaf({2, n})}, [&](auto& in) { return square(fft::fft(in[0])); }},
        {"ifft", {pairs_leaf({2, n})}, [&](auto& in) { return square(fft::ifft(z(in[0]), {}, 0, FftNorm::ortho)); }},
        {"fft cut", {pairs_leaf({2, n})}, [&](auto& in) { return fft::fft(z(in[0]), 4, -1, FftNorm::forward); }},
        {"rfft", {real_leaf({2, n})}, [&](auto& in) { return square(fft::rfft(in[0])); }},
        {"rfft dim", {real_leaf({n, 2})}, [&](auto& in) { return abs(fft::rfft(in[0], 3, 0, FftNorm::ortho)); }},
        {"irfft", {pairs_leaf({2, n / 2 + 1})}, [&](auto& in) { return square(fft::irfft(z(in[0]), n)); }},
        {"irfft odd", {pairs_leaf({2, n})}, [&](auto& in) { return fft::irfft(z(in[0]), 5, -1, FftNorm::forward); }},
        {"hfft", {pairs_leaf({2, n})}, [&](auto& in) { return fft::hfft(z(in[0]), 6); }},
        {"ihfft", {real_leaf({2, n})}, [&](auto& in) { return fft::ihfft(in[0]); }},
        {"rfft2 irfft2",
         {real_leaf({3, n})},
         [&](auto& in) {
           const Variable s = fft::rfft2(in[0]);
           return fft::irfft2(s * s, {3, n});
         }},
        {"fftn shift", {pairs_leaf({2, n})}, [&](auto& in) { return fft::fftshift(fft::fftn(z(in[0]))); }},
    });
  }
}
