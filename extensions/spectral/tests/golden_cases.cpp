// The golden cases of Fourier transforms and of complex numbers, which are passed as pairs.
#include <optional>

#include "extensions/spectral/fft.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

void add_spectral(Functions& functions) {
  auto& t = functions.ops;
  const auto numbers = [](const Variable& x, const Case& c) {
    return c.flag("real", false) ? x : complex(x.select(-1, 0), x.select(-1, 1));
  };
  const auto pairs = [](const Variable& y) { return Outputs{is_complex(y.dtype()) ? view_as_real(y) : y}; };
  const auto norm = [](const Case& c) {
    const std::string text = c.text("norm", "backward");
    return text == "ortho" ? fft::FftNorm::ortho : text == "forward" ? fft::FftNorm::forward : fft::FftNorm::backward;
  };
  const auto one = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) {
      const std::optional<int64_t> n = c.arg("n") ? std::optional<int64_t>(c.integer("n")) : std::nullopt;
      return pairs(fn(numbers(in[0], c), n, c.integer("dim", -1), norm(c)));
    };
  };
  const auto many = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) {
      return pairs(fn(numbers(in[0], c), c.dims("s"), c.dims("dims"), norm(c)));
    };
  };
#define LOCKSTEP_ONE(name) one(#name, [](auto&&... a) { return fft::name(a...); })
#define LOCKSTEP_MANY(name) many(#name, [](auto&&... a) { return fft::name(a...); })
  LOCKSTEP_ONE(fft);
  LOCKSTEP_ONE(ifft);
  LOCKSTEP_ONE(rfft);
  LOCKSTEP_ONE(irfft);
  LOCKSTEP_ONE(hfft);
  LOCKSTEP_ONE(ihfft);
  LOCKSTEP_MANY(fftn);
  LOCKSTEP_MANY(ifftn);
  LOCKSTEP_MANY(rfftn);
  LOCKSTEP_MANY(irfftn);
  LOCKSTEP_MANY(fft2);
  LOCKSTEP_MANY(ifft2);
  LOCKSTEP_MANY(rfft2);
  LOCKSTEP_MANY(irfft2);
#undef LOCKSTEP_ONE
#undef LOCKSTEP_MANY
  const auto shift = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) { return pairs(fn(numbers(in[0], c), c.dims("dims"))); };
  };
  shift("fftshift", [](const Variable& x, const Dims& d) { return fft::fftshift(x, d); });
  shift("ifftshift", [](const Variable& x, const Dims& d) { return fft::ifftshift(x, d); });
  const auto each = [&](const char* name, auto fn) {
    t[name] = [=](const Inputs& in, const Case& c) {
      return pairs(
          fn(numbers(in[0], c), in.size() > 1 ? complex(in[1].select(-1, 0), in[1].select(-1, 1)) : Variable()));
    };
  };
  each("complex_add", [](const auto& a, const auto& b) { return a + b; });
  each("complex_sub", [](const auto& a, const auto& b) { return a - b; });
  each("complex_mul", [](const auto& a, const auto& b) { return a * b; });
  each("complex_div", [](const auto& a, const auto& b) { return a / b; });
  each("complex_abs", [](const auto& a, const auto&) { return abs(a); });
  each("complex_angle", [](const auto& a, const auto&) { return angle(a); });
  each("complex_conj", [](const auto& a, const auto&) { return conj(a); });
  each("complex_square", [](const auto& a, const auto&) { return square(a); });
  each("complex_reciprocal", [](const auto& a, const auto&) { return reciprocal(a); });
  each("complex_sum", [](const auto& a, const auto&) { return sum(a); });
}

}  // namespace golden
